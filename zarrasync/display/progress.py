"""Progress bars and callbacks, and the report of an ingestion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zarrasync.display.text import counted, size_text
from zarrasync.transfer.threads import Progress

__all__ = ["Bar", "IngestReport", "report_progress"]


class Bar:
    """A progress bar, called with the number of bytes that were done since the last call.

    Args:
        total: All bytes.
        label: The text in front of the bar.
        rows: The length of the first axis, to show how many rows are done; 0 to show none.

    Raises:
        ImportError: If tqdm is not installed.
    """

    def __init__(self, total: int, label: str, rows: int = 0) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True needs tqdm: pip install 'zarrasync[jupyter]' (or pass a function)"
            ) from error
        self._tqdm: Any = tqdm(total=total, desc=label, unit="B", unit_scale=True)
        self._total, self._rows = total, rows

    def __call__(self, nbytes: int) -> None:
        if self._rows and self._total:
            rows_done = min((self._tqdm.n + nbytes) * self._rows // self._total, self._rows)
            self._tqdm.set_postfix_str(f"{rows_done:,}/{self._rows:,} rows", refresh=False)
        self._tqdm.update(nbytes)

    def skip(self, nbytes: int) -> None:
        """Advance by bytes that an earlier run has done, without counting them in the rate."""
        self._tqdm.initial += nbytes
        self._tqdm.last_print_n += nbytes
        self(nbytes)

    def close(self) -> None:
        """End the bar."""
        self._tqdm.close()


@contextmanager
def report_progress(progress: bool | Progress, total: int, label: str, rows: int = 0) -> Iterator[Progress | None]:
    """Provide a progress callback inside a ``with`` block.

    Args:
        progress: The caller's own callback, or whether to show a bar.
        total: All bytes.
        label: The text in front of the bar.
        rows: The length of the first axis, to show how many rows are done; 0 to show none.

    Yields:
        The callback, or ``None`` if there is none.
    """
    if callable(progress):
        yield progress
    elif progress:
        bar = Bar(total, label, rows)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield None


@dataclass
class IngestReport:
    """The result of an ingestion.

    Attributes:
        blocks: Blocks that were written.
        skipped: Blocks that an earlier run had written.
        nbytes: Bytes of the elements that were written, decoded.
        stored: Bytes sent to the store.
        requests: Operations of the store.
        retries: Requests that were repeated after a failure (those that obstore repeats itself are not counted).
        conflicts: Chunks that were merged and written again, because another writer had changed them.
        verified: Blocks that were read again and compared.
        seconds: The duration.
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
        """Decoded bytes per second."""
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
