"""Whether obstore can be used in this process (not in a forked child), and waiting for its threads at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from zarrasync._concurrency import clock

__all__ = ["is_usable"]

_first_process = 0


def is_usable() -> bool:
    """Return whether obstore works in this process. It does not work in a fork of a process that has used it.

    Calling this function counts as use.
    """
    global _first_process
    if not _first_process:
        _first_process = os.getpid()
        atexit.register(_wait_for_foreign_threads)
    return _first_process == os.getpid()


def _wait_for_foreign_threads() -> None:
    """Wait until obstore's threads have left the interpreter.

    A thread that has just delivered a response may wait for the interpreter lock. If the interpreter ends meanwhile, the
    thread is unwound through Rust code, which aborts the process.
    """
    end = clock.monotonic() + 1.0
    while clock.monotonic() < end:
        python_threads = {thread.ident for thread in threading.enumerate()}
        if not set(sys._current_frames()) - python_threads:  # noqa: SLF001  # documented, despite its name
            break
        clock.sleep_blocking(0.001)
