"""Telling of progress, through the caller's function or a bar, and of what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarrasync.display.info import counted, size_text
from zarrasync.transfer.threads import Progress

__all__ = ["Bar", "IngestReport", "reporting"]


class Bar:
    """A progress bar, which is called with the bytes done since the last call.

    Args:
        total: The bytes of all.
        what: What is done.
        rows: Along the first axis, which the bar counts, too; 0 for none.

    Raises:
        ImportError: If tqdm is not installed.
    """

    def __init__(self, total: int, what: str, rows: int = 0) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True needs tqdm: pip install 'zarrasync[jupyter]' (or pass a function)"
            ) from error
        self._tqdm: Any = tqdm(total=total, desc=what, unit="B", unit_scale=True)
        self._total, self._rows = total, rows

    def __call__(self, nbytes: int) -> None:
        if self._rows and self._total:
            done = min((self._tqdm.n + nbytes) * self._rows // self._total, self._rows)
            self._tqdm.set_postfix_str(f"{done:,}/{self._rows:,} rows", refresh=False)
        self._tqdm.update(nbytes)

    def skip(self, nbytes: int) -> None:
        """Count bytes that were there before, which tell nothing of how fast the others come."""
        self._tqdm.initial += nbytes
        self._tqdm.last_print_n += nbytes
        self(nbytes)

    def close(self) -> None:
        self._tqdm.close()


class reporting:
    """A progress callback for the length of a block: the caller's, or that of a bar.

    Args:
        progress: The caller's function, or whether to show a bar.
        total: The bytes of all.
        what: What is done, for the bar.
        rows: Along the first axis, which the bar counts, too; 0 for none.
    """

    def __init__(self, progress: bool | Progress, total: int, what: str, rows: int = 0) -> None:
        self._progress, self._bar_of = progress, (total, what, rows)
        self._bar: Bar | None = None

    def __enter__(self) -> Progress | None:
        if callable(self._progress):
            return self._progress
        if self._progress:
            self._bar = Bar(*self._bar_of)
        return self._bar

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
