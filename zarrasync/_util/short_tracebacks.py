"""Short tracebacks: errors of the library end at the user's line, without the frames below the called function.

Each public function that users call catches the errors in ``RAISED``, removes the frames of the library from an error
that the library has raised on purpose, and raises it again. Unexpected errors keep all frames and causes, and so do all
errors if ``config.debug_errors`` is set. Successful calls are not affected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from opcode import opmap
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from zarrasync import config
from zarrasync.errors import StoreError, ZarrError

__all__ = ["RAISED", "short_tracebacks", "shorten", "shorten_methods"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

RAISED = (ZarrError, TypeError, ValueError, KeyError, IndexError, ImportError)
"""The errors that this library raises, including built-in errors for wrong arguments and missing packages."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARY = str(Path(os.__file__).parent) + os.sep
_THIRD_PARTY = ("site-packages", "dist-packages")
_SHORTENED = "_is_shortened"
"""An attribute of errors whose causes were shortened, because several functions of the library may catch an error."""


def shorten(error: Exception, kept: int | None = None) -> None:
    """Remove frames of this package and of Python's library from an error that is about to be raised to users.

    Call this function in an ``except`` block that ends with a bare ``raise``, which does not add the frame of that block
    again. Frames of other code are kept, such as the frames of a callback. An error other than a ``ZarrError`` keeps all
    frames unless a ``raise`` statement of this package has raised it, because it may be a bug of this package or come
    from a callback.

    Args:
        error: The error.
        kept: The number of a frame of the traceback to keep; 0 is the frame that caught the error. ``None`` for none.
    """
    if config.get().debug_errors:
        return
    trace, is_shortened = error.__traceback__, getattr(error, _SHORTENED, False)
    if not isinstance(error, ZarrError) and not is_shortened and not _is_raised_here(trace):
        return
    is_ours = _is_internal(_last(trace).tb_frame) if trace is not None else False
    error.__traceback__ = _without_internal(trace, kept)
    if is_ours and not is_shortened:
        setattr(error, _SHORTENED, True)
        _shorten_chain(error, _handled_outside(error, sys._getframe(1)))  # noqa: SLF001  # the caller's frame


def _shorten_chain(error: Exception, outer: BaseException | None) -> None:
    """Hide causes that repeat the message of an error. Programs can still find a hidden cause in ``__context__``.

    Args:
        error: An error that this library has raised.
        outer: The error that the caller was handling, which stays visible.
    """
    cause = error.__cause__
    if cause is None or cause is outer or isinstance(cause, BaseExceptionGroup):
        _set_context(error, outer)
    elif outer is None and not _adds_information(cause, error):
        _set_context(error, None)
        error.__context__ = cause
    else:
        _shorten_cause(cause, outer)


def _shorten_cause(cause: BaseException, outer: BaseException | None) -> None:
    """Remove internal frames from a visible cause and its causes. Errors from the user's code keep their contexts."""
    is_from_user = _is_from_user(cause)
    cause.__traceback__ = _without_internal(cause.__traceback__, None)
    following = cause.__cause__
    if following is not None and following is not outer and not isinstance(following, BaseExceptionGroup):
        _shorten_cause(following, outer)
    elif not is_from_user:
        _set_context(cause, outer)


def short_tracebacks(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a public coroutine function, so that its frame is the last one of its errors.

    Functions for which one more call is too slow call ``shorten`` themselves.
    """

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except RAISED as error:
            shorten(error, kept=1)
            raise

    return call


def shorten_methods(*excluded: str) -> Callable[[C], C]:
    """Return a class decorator that applies ``short_tracebacks`` to public coroutine methods, except some."""

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if iscoroutinefunction(method) and not name.startswith("_") and name not in excluded:
                setattr(cls, name, short_tracebacks(method))
        return cls

    return decorate


def _is_internal(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    if path.startswith(_PACKAGE):
        return True
    return path.startswith((_LIBRARY, "<frozen")) and not any(name in path for name in _THIRD_PARTY)


def _without_internal(trace: TracebackType | None, kept: int | None) -> TracebackType | None:
    """Return a traceback without internal frames, except for the frame with the number ``kept``."""
    entries: list[TracebackType] = []
    number = 0
    while trace is not None:
        if number == kept or not _is_internal(trace.tb_frame):
            entries.append(trace)
        trace, number = trace.tb_next, number + 1
    shortened: TracebackType | None = None
    for entry in reversed(entries):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes and contexts of an error, including contexts that ``raise … from None`` hides."""
    seen = {id(error)}
    following: BaseException | None = error
    while following is not None:
        following = following.__cause__ or following.__context__
        if following is None or id(following) in seen:
            return
        seen.add(id(following))
        yield following


def _handled_outside(error: BaseException, frame: FrameType | None) -> BaseException | None:
    """Return the error that the caller was handling when it called this library, if any."""
    callers = set[FrameType]()
    while frame is not None:
        callers.add(frame)
        frame = frame.f_back
    for link in _chain(error):
        trace = link.__traceback__
        if trace is not None and trace.tb_frame in callers and not _is_internal(trace.tb_frame):
            return link
    return None


def _set_context(error: BaseException, context: BaseException | None) -> None:
    """Replace the cause and the context of an error by one context, which Python prints."""
    error.__cause__ = None
    error.__context__, error.__suppress_context__ = context, context is None


def _adds_information(cause: BaseException, error: Exception) -> bool:
    """Return whether a cause adds information to the message of its error, or was raised by code of the user.

    The messages of stores already contain the relevant information of a cause.
    """
    if _is_from_user(cause):
        return True
    message, reason = str(error), str(cause).partition("\n\n")[0]
    return not isinstance(error, StoreError) and type(cause).__name__ not in message and reason not in message


def _is_from_user(error: BaseException) -> bool:
    """Return whether an error was raised by the user's code, such as a codec or a store, not by an installed package."""
    trace = error.__traceback__
    if trace is None:
        return False
    frame = _last(trace).tb_frame
    return not _is_internal(frame) and not any(name in frame.f_code.co_filename for name in _THIRD_PARTY)


def _is_raised_here(trace: TracebackType | None) -> bool:
    """Return whether a ``raise`` statement of this package raised an error, rather than a call, operator or lookup."""
    if trace is None:
        return False
    last = _last(trace)
    code = last.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]


def _last(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace
