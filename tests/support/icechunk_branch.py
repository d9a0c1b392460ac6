"""What the branch ``main`` of a repository contains, as icechunk and zarr-python read it. Importing this needs icechunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import icechunk
import xarray as xr

__all__ = ["messages", "repository", "stored"]


def repository(place: Path) -> Any:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))


def messages(place: Path) -> list[str]:
    """Return the history, the newest commit first."""
    return [commit.message for commit in repository(place).ancestry(branch="main")]


def stored(place: Path, path: str = "") -> Any:
    """Return the dataset as zarr-python and xarray read it from a session of icechunk."""
    store = repository(place).readonly_session("main").store
    return xr.open_zarr(store, group=path or None, consolidated=False).load()
