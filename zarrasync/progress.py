"""Telling of progress, through the caller's function or a bar, and of what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarrasync.info import counted, size_text
from zarrasync.transfer.jobs import Progress

__all__ = ["IngestReport", "reporting"]


class reporting:
    """A progress callback for the length of a block: the caller's, or that of a bar.

    Args:
        progress: The caller's function, or whether to show a bar.
        total: The bytes of all.
        what: What is done, for the bar.
        rows: Along the first axis, which the bar counts, too; 0 for none.
    """

    def __init__(self, progress: bool | Progress, total: int, what: str, rows: int = 0) -> None:
        self._progress, self._total, self._what, self._rows = progress, total, what, rows
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
        if self._rows and self._total:
            done = min((self._bar.n + nbytes) * self._rows // self._total, self._rows)
            self._bar.set_postfix_str(f"{done:,}/{self._rows:,} rows", refresh=False)
        self._bar.update(nbytes)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


@dataclass
class IngestReport:
    """What an ingestion did.

    Attributes:
        blocks: Blocks that were written.
        skipped: Blocks that an earlier run had written.
        nbytes: Bytes of the elements that were written, decoded.
        stored: Bytes that went to the store.
        requests: Operations of the store.
        retries: Requests of them that were made again after a failure (obstore's own are not known).
        conflicts: Parts of chunks that were written again, as others had changed the chunk meanwhile.
        verified: Blocks that were read again and compared.
        seconds: How long it took.
    """

    blocks: int = 0
    skipped: int = 0
    nbytes: int = 0
    stored: int = 0
    requests: int = 0
    retries: int = 0
    conflicts: int = 0
    verified: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes of elements a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        parts = [
            f"{counted(self.blocks, 'block')} written",
            f"{self.skipped:,} were there" if self.skipped else "",
            f"{size_text(self.nbytes)} as {size_text(self.stored)} in {counted(self.requests, 'request')}",
            f"{self.seconds:.1f} s, {size_text(int(self.rate))}/s",
            f"{self.retries:,} retried" if self.retries else "",
            counted(self.conflicts, "conflict") if self.conflicts else "",
            f"{self.verified:,} verified" if self.verified else "",
        ]
        return ", ".join(part for part in parts if part)
