"""The system calls of the compiled kernel, through a function of Python: tests record them, and let them fail."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from unittest import mock

from zarrasync._kernel import structs
from zarrasync._kernel.library import kernel
from zarrasync._kernel.structs import Worker

__all__ = ["CALLS", "Handler", "kernel_calls"]

_INT, _SIZE, _I64 = ctypes.c_int, ctypes.c_size_t, ctypes.c_int64
_COUNT, _POINTER, _NAME = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_char_p
CALLS: dict[str, tuple[Any, ...]] = {
    "openat": (_INT, _INT, _NAME, _INT),
    "open_below": (_INT, _INT, _NAME, _INT, _INT),
    "close": (_INT, _INT),
    "pread": (_COUNT, _INT, _POINTER, _SIZE, _I64),
    "writev": (_COUNT, _INT, _POINTER, _INT),
    "copy": (_COUNT, _INT, _POINTER, _INT, _SIZE),
    "fstat": (_INT, _INT, _POINTER),
    "fstatat": (_INT, _INT, _NAME, _POINTER, _INT),
    "lock": (_INT, _INT, _INT, _I64),
    "linkat": (_INT, _INT, _NAME, _INT, _NAME, _INT),
    "renameat": (_INT, _INT, _NAME, _INT, _NAME),
    "rename_new": (_INT, _INT, _NAME, _NAME),
    "unlinkat": (_INT, _INT, _NAME, _INT),
    "mkdirat": (_INT, _INT, _NAME, ctypes.c_uint),
    "opendir": (_POINTER, _NAME),
    "readdir": (_POINTER, _POINTER),
    "closedir": (_INT, _POINTER),
}
"""The members of ``za_system`` in ``system.h``: the types of the result and the arguments."""


class Handler(Protocol):
    """Makes a system call of the kernel, or lets it fail."""

    def __call__(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the result of a call.

        Args:
            name: The name of the call in ``CALLS``.
            real: Makes the call, and returns -1, or ``None`` instead of a pointer, if it fails.
            args: Its arguments. Names are bytes, and pointers are numbers.

        Raises:
            OSError: To let the call fail with the error's number.
        """


_PROTOTYPES: dict[str, Any] = {name: ctypes.CFUNCTYPE(*types, use_errno=True) for name, types in CALLS.items()}


class _Table(ctypes.Structure):
    _fields_ = [*_PROTOTYPES.items()]


def _make(handler: Handler, name: str, real: Callable[..., Any], *args: Any) -> Any:
    try:
        return handler(name, real, args)
    except OSError as error:
        ctypes.set_errno(error.errno or 0)
        return None if CALLS[name][0] is _POINTER else -1


@contextmanager
def kernel_calls(handler: Handler, make: Callable[[int], Worker] = Worker) -> Iterator[None]:
    """Let the kernel make its system calls through a handler, in all threads.

    Args:
        handler: Makes the calls.
        make: Returns a worker of the kernel with the table of system calls at an address.
    """
    library: Any = kernel("require")
    real = _Table.from_address(library.zarrasync_system())
    table = _Table(
        *[prototype(partial(_make, handler, name, getattr(real, name))) for name, prototype in _PROTOTYPES.items()]
    )

    class Threads(threading.local):
        def __init__(self) -> None:
            self.worker = make(ctypes.addressof(table))

    with mock.patch.object(structs, "_threads", Threads()):
        yield
