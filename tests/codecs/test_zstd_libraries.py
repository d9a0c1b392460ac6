"""zstd with only some of the libraries that can read and write it, as on Pythons for which the others have no builds."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support import ROOT
from zarrasync import sync
from zarrasync.codecs import ZstdCodec

zstandard = pytest.importorskip("zstandard", reason="it writes the values that are read without it")

SIZES = [1, 300, 70_000, 200_000]
SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import zarrasync as za
from zarrasync import sync

za.config.set(native="off").__enter__()
{code}
"""


def run_without(absent: set[str], code: str, **variables: str) -> str:
    """Run code in a process in which some packages cannot be imported and the compiled kernel is not used."""
    command = [sys.executable, "-c", SCRIPT.format(absent=absent, code=code)]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


COPY = """
for size in {sizes}:
    values = sync.open_array("{folder}", path=f"a{{size}}")[...]
    sync.create_array("{folder}", path=f"b{{size}}", data=values, chunks=(1, size), compressors="zstd", overwrite=True)
    print(values.sum())
"""


@pytest.mark.processes
@pytest.mark.parametrize("absent", [{"zstandard"}, {"numcodecs"}], ids="-".join)
def test_one_library_is_enough(tmp_path, absent):
    data = {size: np.random.default_rng(size).integers(0, 9, (3, size), "u1") for size in SIZES}
    for size, values in data.items():
        sync.create_array(tmp_path, path=f"a{size}", data=values, chunks=(1, size), compressors=ZstdCodec(1))
    sums = run_without(absent, COPY.format(folder=tmp_path, sizes=SIZES)).split()
    assert list(map(int, sums)) == [values.sum() for values in data.values()]
    for size, values in data.items():
        np.testing.assert_array_equal(sync.open_array(tmp_path, path=f"b{size}")[...], values)


@pytest.mark.processes
def test_the_part_of_zstandard_that_pypy_uses_takes_one_value_at_a_time(tmp_path):
    pytest.importorskip("cffi", reason="PyPy uses zstandard through it")
    code = f"""
a = sync.create_array("{tmp_path}", data=np.arange(10_000), chunks=(10,), shards=(1000,), compressors="zstd")
print((a[...] == np.arange(10_000)).all(), sync.open_array("{tmp_path}")[5_005])
"""
    assert run_without(set(), code, PYTHON_ZSTANDARD_IMPORT_POLICY="cffi").split() == ["True", "5005"]


@pytest.mark.processes
def test_frames_without_a_size_need_zstandard_or_a_newer_python(tmp_path):
    values = np.arange(70_000, dtype="u4")
    sync.create_array(tmp_path, data=values, chunks=(70_000,), compressors="zstd")
    frame = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(values.tobytes())
    (tmp_path / "c" / "0").write_bytes(frame)
    code = f"""
from zarrasync.codecs.zstd import zstd_decoder
data = open("{tmp_path}/c/0", "rb").read()
try:
    print(len(zstd_decoder(None, 1 << 20)(data, None)))
    zstd_decoder(None, 1 << 10)(data, None)
except Exception as error:
    print(error)
print(sync.open_array("{tmp_path}")[69_999])
"""
    first, *_, last = run_without({"zstandard"}, code).splitlines()
    expected = "280000" if sys.version_info >= (3, 14) else "needs Python 3.14 or newer, or zstandard"
    assert expected in first
    assert last == "69999"  # the chunk has a known size


@pytest.mark.processes
def test_codecs_of_numcodecs_name_the_missing_package(tmp_path):
    sync.create_array(tmp_path, data=np.arange(8), compressors="blosc")
    code = f"""
for make in (
    lambda: sync.open_array("{tmp_path}")[...],
    lambda: sync.create_array(dict(), data=np.arange(8), zarr_format=2, compressors=dict(id="lz4")),
):
    try:
        make()
    except za.errors.UnknownCodecError as error:
        print(error)
"""
    lines = run_without({"numcodecs"}, code).splitlines()
    assert len(lines) == 2
    assert all("numcodecs" in line and "install" in line for line in lines)
