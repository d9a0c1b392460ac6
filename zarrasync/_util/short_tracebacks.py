"""Short tracebacks: errors of synchronous calls without the frames below the called function.

``_concurrency.bridge.run``, through which all synchronous calls go, is the one place that removes frames of the library: from
errors that the library has raised on purpose, and from ``KeyboardInterrupt``. Unexpected errors keep all frames, and so do all
errors if ``config.debug_errors`` is set, and errors of the asynchronous API. Causes are kept.
"""

from __future__ import annotations

import os
from opcode import opmap
from pathlib import Path
from types import TracebackType

from zarrasync import config
from zarrasync.errors import ZarrError

RAISED = (ZarrError, TypeError, ValueError, KeyError, IndexError, ImportError, KeyboardInterrupt)
"""The errors that this library raises, including built-in errors for wrong arguments and missing packages."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARY = str(Path(os.__file__).parent) + os.sep
_THIRD_PARTY = ("site-packages", "dist-packages")


def shorten(error: BaseException) -> None:
    """Remove frames of this package and of Python's library from an error that is about to be raised to users.

    Call this function in an ``except`` block that ends with a bare ``raise``. Frames of other code are kept, such as the
    frames of a callback. Causes keep all frames. An error other than a ``ZarrError`` or ``KeyboardInterrupt`` keeps all
    frames unless a ``raise`` statement of this package has raised it, because it may be a bug of this package or come from a
    callback.

    Args:
        error: The error.
    """
    if config.get().debug_errors:
        return
    if isinstance(error, ZarrError | KeyboardInterrupt) or _is_raised_here(error.__traceback__):
        error.__traceback__ = _without_internal(error.__traceback__)


def _is_internal(trace: TracebackType) -> bool:
    path = trace.tb_frame.f_code.co_filename
    if path.startswith(_PACKAGE):
        return True
    return path.startswith((_LIBRARY, "<frozen")) and not any(name in path for name in _THIRD_PARTY)


def _without_internal(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without internal frames."""
    if trace is None:
        return None
    following = _without_internal(trace.tb_next)
    return (
        following if _is_internal(trace) else TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    )


def _is_raised_here(trace: TracebackType | None) -> bool:
    """Return whether a ``raise`` statement of this package raised an error, rather than a call, operator or lookup."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
