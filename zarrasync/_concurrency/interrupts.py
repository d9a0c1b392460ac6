"""Exceptions of signal handlers, such as ``KeyboardInterrupt``, at the end of a synchronous call instead of within it.

Python runs signal handlers on the main thread between any two instructions. An exception there could lose a descriptor
that was just opened, or a lock that was just taken. So while a synchronous call works on the main thread, the program's
handlers are called as usual, but an exception of a handler is kept. The work is cancelled, and the exception is raised
when the work has stopped. Handlers that return normally do not disturb the work.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any, TypeAlias, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.cancel import CALL_FLAG, CancelFlag
from zarrasync._concurrency.fork import reset_in_child

__all__ = ["Interruptible", "is_in_handler", "main_thread", "of_call"]

T = TypeVar("T")
Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2")
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]
_PATIENCE_SECONDS = 5.0
"""Seconds after a first exception after which another one is raised at once, although the work has not stopped."""

# The functions of the interpreter, without the conversion to enums, which takes longer than they do.
_interpreter: Any = importlib.import_module("_signal")
_get_handler: Callable[[int], Any] = _interpreter.getsignal
_set_handler: Callable[[int, Any], Any] = _interpreter.signal

main_thread = threading.main_thread().ident
"""The identifier of the thread on which signal handlers run."""
_handlers: dict[int, Handler] = {}
"""The program's handlers, by signal."""
_replaced: Sequence[int] = ()
"""The signals whose handlers a call replaces."""
_known: list[Any] = []
"""The handlers of all signals for which ``_replaced`` was computed."""
_of_calls: list[tuple[ContextVar[Any], Any]] = []
"""Variables that describe a call, and their values outside of one."""
_handling = 0
"""The number of the program's handlers that run within calls on the main thread."""
_current: Interruptible | None = None
"""The innermost call on the main thread."""


class Interruptible(CancelFlag):
    """A synchronous call on the main thread, which begins here. ``end`` raises what signal handlers raised within it.

    Attributes:
        on_cancel: Also called when the call is cancelled, on the main thread within a signal handler.
    """

    __slots__ = ("_error", "_installed", "_outer", "_since", "_token", "on_cancel")

    def __init__(self) -> None:
        global _current, main_thread
        self._parent, self._cancelled, self._byte = CALL_FLAG.get(), False, None
        self._error: BaseException | None = None
        self._outer: Interruptible | None = None
        self._token: Token[CancelFlag | None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        handlers = list(map(_get_handler, _SIGNALS))
        if handlers != _known:
            _learn(handlers)
        self._installed = _replaced
        try:
            for number in self._installed:
                _set_handler(number, _handle)
        except ValueError:  # a subinterpreter, which has no signals
            self._installed, main_thread = (), None
        self._outer, _current = _current, self
        self._token = CALL_FLAG.set(self)

    def end(self) -> None:
        """End the call: restore the program's handlers, and raise the exception that one of them has raised."""
        global _current
        if self._token is not None:
            CALL_FLAG.reset(self._token)
        try:
            for number in self._installed:
                if _get_handler(number) is _handle:  # otherwise the program has set another one meanwhile
                    _set_handler(number, _handlers[number])
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
        """Keep an exception of a signal handler for the end of the call, and cancel the call."""
        now = clock.monotonic()
        if self._error is None:
            self._error, self._since = error, now
            self.cancel()
        elif now - self._since > _PATIENCE_SECONDS:
            raise error


def _learn(handlers: list[Any]) -> None:
    """Note the program's handlers, and which of them to replace.

    In a nested call, the outer call has already replaced them.
    """
    global _replaced, _known
    functions = {number: handler for number, handler in zip(_SIGNALS, handlers, strict=True) if callable(handler)}
    _handlers.update({number: handler for number, handler in functions.items() if handler is not _handle})
    _replaced = [number for number, handler in functions.items() if handler is not _handle or _current is None]
    _known = [] if _handle in handlers else handlers


def _handle(number: int, frame: FrameType | None) -> None:
    """Call the program's handler of a signal."""
    global _handling
    call = _current
    _handling += 1
    tokens = [(variable, variable.set(value)) for variable, value in _of_calls]  # calls of the handler are other calls
    try:
        _handlers[number](number, frame)
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
