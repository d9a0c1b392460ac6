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
    """A progress bar. Call it with the number of bytes processed since the last call.

    Args:
        total: The total number of bytes.
        label: The text in front of the bar.
        rows: The length of the first axis, to show the number of processed rows; 0 to show no rows.

    Raises:
        ImportError: If tqdm is not installed.
    """

    def __init__(self, total: int, label: str, rows: int = 0) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True requires tqdm: pip install 'zarrasync[jupyter]', or pass a function as progress"
            ) from error
        self._tqdm: Any = tqdm(total=total, desc=label, unit="B", unit_scale=True)
        self._total, self._rows = total, rows

    def __call__(self, nbytes: int) -> None:
        if self._rows and self._total:
            rows_done = min((self._tqdm.n + nbytes) * self._rows // self._total, self._rows)
            self._tqdm.set_postfix_str(f"{rows_done:,}/{self._rows:,} rows", refresh=False)
        self._tqdm.update(nbytes)

    def skip(self, nbytes: int) -> None:
        """Advance by bytes that an earlier run has processed, without including them in the rate."""
        self._tqdm.initial += nbytes
        self._tqdm.last_print_n += nbytes
        self(nbytes)

    def close(self) -> None:
        """Close the bar."""
        self._tqdm.close()


@contextmanager
def report_progress(progress: bool | Progress, total: int, label: str, rows: int = 0) -> Iterator[Progress | None]:
    """Provide a progress callback inside a ``with`` block.

    Args:
        progress: A callback, or whether to show a progress bar.
        total: The total number of bytes.
        label: The text in front of the bar.
        rows: The length of the first axis, to show the number of processed rows; 0 to show no rows.

    Yields:
        The callback, or ``None`` without progress reports.
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
        blocks: The number of blocks that were written.
        skipped: The number of blocks that were skipped, because an earlier run had written them.
        nbytes: The decoded size of the written elements, in bytes.
        stored: The number of bytes sent to the store.
        requests: The number of requests to the store.
        retries: The number of requests that were repeated after a failure, without the retries of obstore.
        conflicts: The number of chunks that were merged and written again, because another writer had changed them.
        verified: The number of blocks that were read back and compared.
        seconds: The duration in seconds.
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
