"""Telling of progress: through the caller's function, or a bar."""

from __future__ import annotations

from typing import Any

from zarrasync.transfer.jobs import Progress

__all__ = ["reporting"]


class reporting:
    """A progress callback for the length of a block: the caller's, or that of a bar."""

    def __init__(self, progress: bool | Progress, total: int, what: str) -> None:
        self._progress, self._total, self._what = progress, total, what
        self._bar: Any = None

    def __enter__(self) -> Progress | None:
        if callable(self._progress):
            return self._progress
        if not self._progress:
            return None
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True needs tqdm: pip install 'zarrasync[jupyter]' (or pass a function)"
            ) from error
        self._bar = tqdm(total=self._total, desc=self._what, unit="B", unit_scale=True)
        return self._update

    def _update(self, nbytes: int) -> None:
        self._bar.update(nbytes)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
