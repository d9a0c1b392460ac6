"""Names of jobs for progress and metrics."""

from __future__ import annotations

from zarrasync.stores import Store

__all__ = ["job_name"]


def job_name(store: Store, path: str) -> str:
    """Return a short name of a node for progress and metrics: the end of its location, or its path in the store."""
    location = store.location(path)
    place = location[-1] if isinstance(location, tuple) else ""
    name = place.rstrip("/").rpartition("/")[2] if isinstance(place, str) else ""
    return name or f"/{path}"
