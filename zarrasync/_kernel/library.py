"""The kernel's shared library, loaded when it is first used."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

ABI = 20  # KERNEL_ABI in kernel.h
_FOLDER = Path(__file__).parent
_NAME = {"win32": "kernel.dll", "darwin": "libkernel.dylib"}.get(sys.platform, "libkernel.so")
_Pointer, _Size, _U32, _I64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int64
_SIGNATURES = {
    "zarrasync_crc32c": (_U32, _U32, _Pointer, _Size),
    "zarrasync_system": (_Pointer,),
    "zarrasync_can_confine": (_I64,),
    "zarrasync_new_worker": (_Pointer, _Pointer, _Pointer, _I64),
    "zarrasync_free_worker": (None, _Pointer),
    "zarrasync_decode": (_I64, _Pointer, _Pointer, _I64, _Pointer, ctypes.c_char_p, _Pointer, _I64),
    "zarrasync_encode": (_I64, _Pointer, _Pointer, ctypes.c_char_p, _Pointer, _Pointer, _I64, _I64, _Pointer),
    "zarrasync_take": (None, _Pointer, _Pointer, _Pointer),
    "zarrasync_read": (_I64, _Pointer, _Pointer, ctypes.c_char_p, _Pointer, _Pointer, _I64, _I64, _Pointer, _Pointer),
    "zarrasync_read_ranges": (_I64, ctypes.c_char_p),
    "zarrasync_sort_points": (_I64, _Pointer, _Pointer, ctypes.c_char_p, _Pointer),
    "zarrasync_write": (
        None,
        _Pointer,
        _Pointer,
        ctypes.c_char_p,
        _Pointer,
        _I64,
        _I64,
        _Pointer,
        _Pointer,
        ctypes.c_char_p,
        _I64,
        ctypes.c_char_p,
        _I64,
    ),
}
"""The types of the result and the arguments of each function."""


def kernel(mode: str) -> ctypes.CDLL | None:
    """Return the kernel, or ``None`` if Python does its work.

    Args:
        mode: The setting ``native``: ``"auto"``, ``"off"`` or ``"require"``.

    Raises:
        ImportError: If the kernel is required and cannot be used.
    """
    if mode == "off":
        return None
    library, problem = _load()
    if library is None and mode == "require":
        raise ImportError(
            f"the setting native is 'require', but {problem}. "
            "Install zarrasync with a C compiler, or set ZARRASYNC_NATIVE=auto"
        )
    return library


def can_confine() -> bool:
    """Return whether the kernel, which is in use, can open files without following links out of a directory."""
    library, _ = _load()
    return library is not None and bool(library.zarrasync_can_confine())


def describe(mode: str) -> str:
    """Return whether the kernel is active, and if not, the reason."""
    if mode == "off":
        return "not active: the setting native is 'off'"
    library, problem = _load()
    return "active" if library else f"not active: {problem}"


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """Load the library of this process. The string is the reason if that is not possible."""
    path = _FOLDER / _NAME
    if not path.exists():
        return None, "this installation has no compiled kernel"
    # A checkout contains the sources; the layout of a struct may have changed since the kernel was compiled.
    if any(source.stat().st_mtime_ns > path.stat().st_mtime_ns for source in _FOLDER.glob("*.[ch]")):
        return None, f"{path} is older than its sources; run `make kernel`"
    try:
        library = ctypes.CDLL(str(path))
        abi = library.zarrasync_kernel_abi()
    except (AttributeError, OSError) as error:  # for another processor, for instance
        return None, f"the compiled kernel cannot be loaded: {error}"
    if abi != ABI:
        return None, f"{path} has version {abi} of the interface, and this zarrasync needs version {ABI}"
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library, ""
