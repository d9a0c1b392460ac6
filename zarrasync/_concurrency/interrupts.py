"""Exceptions of the handler of Ctrl-C, such as ``KeyboardInterrupt``, at the end of a synchronous call instead of within it.

Python runs signal handlers on the main thread between any two instructions. An exception there could lose a descriptor
that was just opened, or a lock that was just taken. So while a synchronous call works on the main thread, the program's
handler of SIGINT is called as usual, but an exception of it is kept. The work is cancelled, and the exception is raised
when the work has stopped. A handler that returns normally does not disturb the work.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CALL_FLAG, CancelFlag
from zarrasync._concurrency.fork import reset_in_child

T = TypeVar("T")
Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_SIGINT = int(signal.SIGINT)
_PATIENCE_SECONDS = 5.0
"""Seconds after a first exception after which another one is raised at once, although the work has not stopped."""

# The functions of the interpreter, without the conversion to enums, which takes longer than they do.
_interpreter: Any = importlib.import_module("_signal")
_get_handler: Callable[[int], Any] = _interpreter.getsignal
_set_handler: Callable[[int, Any], Any] = _interpreter.signal

main_thread = threading.main_thread().ident
"""The identifier of the thread on which signal handlers run."""
_handler: Handler = signal.default_int_handler
"""The program's handler, which a call replaces."""
_of_calls: list[tuple[ContextVar[Any], Any]] = []
"""Variables that describe a call, and their values outside of one."""
_handling = 0
"""The number of runs of the program's handler within calls on the main thread, which may interrupt each other."""
_current: Interruptible | None = None
"""The innermost call on the main thread."""


class Interruptible(CancelFlag):
    """A synchronous call on the main thread, which begins here. ``end`` raises what the handler of Ctrl-C raised within it.

    Attributes:
        on_cancel: Also called when the call is cancelled, on the main thread within a signal handler.
    """

    __slots__ = ("_error", "_is_installed", "_outer", "_since", "_token", "on_cancel")

    def __init__(self) -> None:
        global _current, _handler, main_thread
        self._parent, self._cancelled, self._byte = CALL_FLAG.get(), False, None
        self._error: BaseException | None = None
        self._outer: Interruptible | None = None
        self._token: Token[CancelFlag | None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        handler = _get_handler(_SIGINT)
        self._is_installed = callable(handler) and handler is not _handle  # an outer call has replaced it already
        if self._is_installed:
            try:
                _set_handler(_SIGINT, _handle)
                _handler = handler
            except ValueError:  # a subinterpreter, which has no signals
                self._is_installed, main_thread = False, None
        self._outer, _current = _current, self
        self._token = CALL_FLAG.set(self)

    def end(self) -> None:
        """End the call: restore the program's handlers, and raise the exception that one of them has raised."""
        global _current
        if self._token is not None:
            CALL_FLAG.reset(self._token)
        try:
            if self._is_installed and _get_handler(_SIGINT) is _handle:  # otherwise the program has set another one
                _set_handler(_SIGINT, _handler)
        finally:
            _current = self._outer
        if self._error is not None:
            raised, self._error = self._error, None
            try:
                raise raised from None
            finally:
                del raised  # it refers to this frame

    def cancel(self) -> None:
        super().cancel()
        if self.on_cancel is not None:
            self.on_cancel()

    def keep(self, error: BaseException) -> None:
        """Keep an exception of the handler for the end of the call, and cancel the call."""
        now = clock.monotonic()
        if self._error is None:
            self._error, self._since = error, now
            self.cancel()
        elif now - self._since > _PATIENCE_SECONDS:
            raise error


def _handle(number: int, frame: FrameType | None) -> None:
    """Call the program's handler."""
    global _handling
    call = _current
    _handling += 1
    tokens = [(variable, variable.set(value)) for variable, value in _of_calls]  # calls of the handler are other calls
    try:
        _handler(number, frame)
    except BaseException as error:
        if call is None:
            raise
        call.keep(error)
    finally:
        _handling -= 1
        for variable, token in tokens:
            variable.reset(token)


def of_call(variable: ContextVar[T], value: T) -> ContextVar[T]:
    """Register a variable that describes the current call, and its value in calls that signal handlers make within others."""
    _of_calls.append((variable, value))
    return variable


def is_in_handler() -> bool:
    """Return whether a signal handler runs on this thread within a call, which cannot continue before it returns."""
    return _handling > 0 and threading.get_ident() == main_thread


@reset_in_child
def _reset() -> None:
    """Make the thread that has forked the main thread, as the interpreter does."""
    global main_thread, _current
    main_thread, _current = threading.get_ident(), None
