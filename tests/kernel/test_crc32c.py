"""The kernel's CRC-32C, compared with the package crc32c."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import crc32c
import numpy as np
import pytest

from tests.kernel.test_library import SOURCES, needs_kernel
from zarrasync._kernel.library import kernel

SIZES = [*range(80), 255, 256, 767, 768, 769, 1535, 1536, 2304, 4096, 65_537]
DATA = np.random.default_rng(0).bytes(70_000)


def checked(function) -> None:
    """Compare a function, from several alignments and as a continuation."""
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    address = ctypes.addressof(ctypes.c_char.from_buffer(copy := bytearray(DATA)))
    for size in SIZES:
        for offset in (0, 1, 7):
            expected = crc32c.crc32c(copy[offset : offset + size])
            assert function(0, address + offset, size) == expected
            first = size // 3
            crc = function(0, address + offset, first)
            assert function(crc, address + offset + first, size - first) == expected
        # Memory of its own, so that sanitizers and valgrind notice a read beyond the end.
        assert function(0, (ctypes.c_char * size).from_buffer_copy(DATA), size) == crc32c.crc32c(DATA[:size])
    assert function(0, None, 0) == 0
    assert function(0, b"123456789", 9) == 0xE3069283


@needs_kernel
def test_of_this_processor():
    checked(kernel("auto").zarrasync_crc32c)


@pytest.mark.processes
def test_portable(tmp_path: Path):
    source = SOURCES / "crc32c.c"
    if shutil.which("cc") is None or not source.exists():
        pytest.skip("there is no compiler, or no source")
    target = tmp_path / "portable.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-DKERNEL_PORTABLE", "-o", target, source], check=True)
    checked(ctypes.CDLL(str(target)).zarrasync_crc32c)
