"""Memory of a call beyond its result, measured in a separate process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.support.servers import http_server
from zarrasync import sync
from zarrasync._util.memory import aligned_empty

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells of a process's peak"),
]

MIB = 1 << 20
CHUNKS = (1024, 1024)  # 4 MiB of float32
SHAPE = (8192, 8192)  # 256 MiB
HEAD = """
    import asyncio, inspect, json, sys
    from pathlib import Path
    import numpy as np
    import zarrasync as za
    from zarrasync import sync

    def memory(what):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))

    def growth(call):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before = memory("VmRSS")
        result = call()
        if inspect.isawaitable(result):
            async def run():
                return await result
            result = asyncio.run(run())
        return memory("VmHWM") - before, result
"""


def run(script: str, *arguments: object) -> int:
    """Run a script. Return the growth of its peak memory in bytes."""
    code = textwrap.dedent(HEAD) + textwrap.dedent(script)
    # dask tunes the allocator of processes that begin after it is used, which would be measured here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def noise(shape: tuple[int, ...]) -> np.ndarray:
    """Return values that compress to about a half."""
    rng = np.random.default_rng(3)
    return rng.integers(0, 1 << 16, shape, dtype="u4").view("f4")


READ = """
    api = {"async": za, "sync": sync}[sys.argv[1]]
    place, options = sys.argv[2], json.loads(sys.argv[3])
    async def read():
        return await (await za.open_array(place, storage_options=options))[...]
    grown, values = growth(
        read if api is za else lambda: sync.open_array(place, storage_options=options)[...]
    )
    assert values.nbytes == 256 << 20 and values.any()
    print(grown - values.nbytes)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are not tuned")
def test_memory_of_results_is_reused(tmp_path: Path):
    """Concurrent reads, whose results are released, do not let the system clear the same memory again."""
    sync.create_array(tmp_path / "a", data=noise((2048, 2048)), chunks=(256, 256))
    script = """
        import resource
        async def read():
            array = await za.open_array(sys.argv[1])
            await asyncio.gather(*(array[at : at + 64].read() for at in range(0, 2048, 64)))
        faults = []
        for _ in range(6):
            asyncio.run(read())
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        print(min(after - before for before, after in zip(faults[1:], faults[2:])))  # threads may begin anew
    """
    pages = (16 << 20) // 4096
    assert run(script, tmp_path / "a") < pages // 4


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create arrays of 256 MiB in chunks of 4 MiB; yield their folder."""
    root = tmp_path_factory.mktemp("arrays")
    values = noise(SHAPE)
    for name, compressors in (("zstd", ["zstd"]), ("raw", None)):
        sync.create_array(root / name, shape=SHAPE, chunks=CHUNKS, dtype="f4", compressors=compressors)[...] = values
    return root


@pytest.mark.parametrize("name", ["zstd", "raw"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_reading_local_files(stored, how, name):
    assert run(READ, how, stored / name, "{}") < 64 * MIB


@pytest.mark.parametrize("how", ["sync", "async"])
def test_reading_from_a_web_server(stored, how):
    with http_server(stored) as url:
        assert run(READ, how, f"{url}/zstd", "{}") < 256 * MIB


def test_reading_from_s3(s3):
    url, options = s3
    array = sync.create_array(url, shape=SHAPE, chunks=CHUNKS, dtype="f4", storage_options=options)
    array[...] = noise(SHAPE)
    array.close()
    assert run(READ, "async", url, json.dumps(options)) < 256 * MIB


WRITE = """
    options = json.loads(sys.argv[3])
    rows, columns = options["shape"]
    rng = np.random.default_rng(3)
    values = rng.integers(0, 1 << 16, (rows, 8192), dtype="u4").view("f4")[:, :columns]
    async def write():
        await (await za.create_array(sys.argv[2], dtype="f4", **options))[...].write(values)
    def write_here():
        sync.create_array(sys.argv[2], dtype="f4", **options)[...] = values
    print(growth(write if sys.argv[1] == "async" else write_here)[0])
"""


@pytest.mark.parametrize("layout", [{"chunks": (1024, 1024)}, {"chunks": (128, 128), "shards": (1024, 1024)}])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_writing_what_is_in_memory(tmp_path, how, layout):
    assert run(WRITE, how, tmp_path / "a", json.dumps({"shape": SHAPE, **layout})) < 128 * MIB


@pytest.mark.parametrize("how", ["sync", "async"])
def test_writing_a_large_shard_takes_little_more_than_its_encoded_form(tmp_path, how):
    """Also for values that are not contiguous."""
    shape = (4096, 4096)
    layout = {"shape": shape, "chunks": (512, 512), "shards": shape}
    grown = run(WRITE, how, tmp_path / "a", json.dumps(layout))
    (shard,) = (tmp_path / "a" / "c").glob("*/*")
    assert shard.stat().st_size > 20 * MIB  # of 64 MiB of values
    assert grown < shard.stat().st_size + 40 * MIB  # a copy of all values would need 64


STREAM = """
    budget = 8 << 20
    def passed(array):
        total = 0
        for region, block in array.view.chunks():
            total += block.nbytes
        return total
    async def passed_async():
        total = 0
        array = await za.open_array(sys.argv[2], config={"memory_budget": budget})
        async for region, block in array.view.chunks():
            total += block.nbytes
        return total
    def passed_here():
        return passed(sync.open_array(sys.argv[2], config={"memory_budget": budget}))
    call = passed_async if sys.argv[1] == "async" else passed_here
    grown, total = growth(call)
    assert total >= 100 * budget, total
    print(grown)
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_streaming_stays_flat(tmp_path, how):
    """The array is a hundred times larger than the permitted memory."""
    shape = (3277, 65536)  # 819 MiB of float32
    array = sync.create_array(tmp_path / "a", shape=shape, chunks=(64, 4096), dtype="f4")
    row = noise((64, shape[1]))
    for start in range(0, shape[0], 64):
        array[start : start + 64] = row[: shape[0] - start]
    assert run(STREAM, how, tmp_path / "a") < 64 * MIB


def test_files_are_read_to_where_copies_are_quick(tmp_path):
    for shape, dtype in (((1 << 20,), "u1"), ((3, 5, 7), ">f8"), ((0, 4), "i2"), ((), "c16")):
        found = aligned_empty(shape, dtype)
        assert found.shape == shape
        assert found.dtype == dtype
        assert found.flags.c_contiguous
        assert found.flags.aligned
        assert not 0 < found.ctypes.data % 4096 < 32
    data = np.zeros(40 << 20, "u1")  # enough for malloc to use separate pages
    array = sync.create_array(tmp_path, data=data, chunks=(1 << 22,), compressors=None)
    assert not 0 < array[...].ctypes.data % 4096 < 32
