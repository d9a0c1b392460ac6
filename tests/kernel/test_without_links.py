"""The kernel on file systems without hard links, which a library that is loaded before the system's simulates."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a compiler"),
]
SHIM = """
#include <errno.h>
int linkat(int a, const char *b, int c, const char *d, int e) {{ errno = {number}; return -1; }}
int link(const char *a, const char *b) {{ errno = {number}; return -1; }}
"""
SCRIPT = """
import os, sys
import numpy as np
from zarrasync import config, sync
try:
    os.link(__file__, "link")
except OSError as error:
    assert error.errno == int(sys.argv[1])
with config.set(native="require"):
    array = sync.create_array("a.zarr", shape=(100, 100), chunks=(10, 10), dtype="i4")
    array[3:95, 4:96] = 1  # parts of absent chunks are created only if nobody else has created them
    array.append(np.ones((5, 100), "i4"))
    assert array[:].sum() == 92 * 92 + 500
assert not [name for _, _, names in os.walk("a.zarr") for name in names if "partial" in name]
print("done")
"""


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK], ids=errno.errorcode.get)
def test_chunks_are_created_without_hard_links(tmp_path: Path, number: int):
    (tmp_path / "shim.c").write_text(SHIM.format(number=number))
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "shim.so", "shim.c"], cwd=tmp_path, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")}
    done = subprocess.run(
        [sys.executable, "script.py", str(number)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
