"""Short tracebacks: errors of the library end at the user's line, without the frames below the called function.

Public functions catch a ``ZarrError`` where they are called by users, remove the frames of the library from it, and raise
it again. All frames and causes are kept if ``config.debug_errors`` is set. Nothing happens on success.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from zarrasync import config
from zarrasync.errors import StoreError, ZarrError

__all__ = ["short_tracebacks", "shorten", "shorten_methods"]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LIBRARY = str(Path(os.__file__).parent) + os.sep
_THIRD_PARTY = ("site-packages", "dist-packages")


def shorten(error: ZarrError, kept: int | None = None) -> None:
    """Remove frames of this package and of Python's library from an error that is about to be raised to users.

    Call it in an ``except`` block that ends with a bare ``raise``, which does not add the frame of that block again.
    Frames of other programs stay, such as those of a callback.

    Args:
        error: The error.
        kept: The number of a frame of the traceback to keep; 0 is the frame that caught the error. ``None`` for none.
    """
    if config.get().debug_errors:
        return
    error.__traceback__ = _without_internal(error.__traceback__, kept)
    cause = error.__cause__
    outer = _handled_outside(error, sys._getframe(1))  # noqa: SLF001  # the documented way to the caller's frame
    if cause is not None and cause is not outer and _adds_information(cause, error):
        cause.__traceback__ = None
        _set_context(cause, outer)
    else:
        _set_context(error, outer)
        if outer is None and not isinstance(cause, BaseExceptionGroup):
            error.__context__ = cause  # for programs: it is not printed


def short_tracebacks(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a public coroutine function, so that its frame is the last one of its errors.

    Functions that must not make one more call catch their errors themselves.
    """

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except ZarrError as error:
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
    """Return a traceback without internal frames, except for one."""
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
    """Yield the causes and contexts of an error, also those that ``raise … from None`` hides."""
    seen = {id(error)}
    following: BaseException | None = error
    while following is not None:
        following = following.__cause__ or following.__context__
        if following is None or id(following) in seen:
            return
        seen.add(id(following))
        yield following


def _handled_outside(error: BaseException, frame: FrameType | None) -> BaseException | None:
    """Return the error that a caller of this library was handling when it called, if any."""
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


def _adds_information(cause: BaseException, error: ZarrError) -> bool:
    """Return whether the message of an error says less than its cause."""
    if isinstance(cause, BaseExceptionGroup) or isinstance(
        error, StoreError
    ):  # stores put all that matters into theirs
        return False
    message, reason = str(error), str(cause).partition("\n\n")[0]
    return type(cause).__name__ not in message and reason not in message
