"""Memory that runs out while a value is received or decoded: the error says so, and calls nothing damaged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import ROOT

pytest.importorskip("resource", reason="needs limits of processes")

PROGRAM = """
import asyncio, gzip, json, resource, sys
import numpy as np
from tests.support.bombs import memory_of_process
from tests.support.raw_answers import answering, head, sized
from tests.support.web_stores import web_store
from zarrasync import errors, stores, sync

SIZE = 48 << 20
VALUES = np.zeros(SIZE, "u1")
LIMIT = 24 << 20


def within_limit(name, call):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (memory_of_process("VmSize") + LIMIT, hard))
    try:
        call()
        kinds, message = [], "no error"
    except BaseException as error:
        kinds, message = [kind.__name__ for kind in type(error).__mro__], str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    print(json.dumps([name, kinds, message]))


def codecs():
    out = np.empty(SIZE, "u1")
    for name in ("gzip", "zstd", "blosc", "numcodecs.zlib", "numcodecs.bz2", "numcodecs.lzma", "numcodecs.lz4"):
        store = {}
        codec = {"name": name, "configuration": {}} if name.startswith("numcodecs") else name
        sync.create_array(store, shape=SIZE, chunks=SIZE, dtype="u1", compressors=codec)[...] = VALUES + 1
        array = sync.open_array(store)
        array[...]  # loads modules, and starts threads
        within_limit(name, lambda: array[: SIZE // 2])


async def bodies():
    plain, encoded = sized(body=bytes(SIZE)), gzip.compress(bytes(SIZE), 1)
    answers = {
        "/warm": sized(),
        "/plain": plain,
        "/gzip": sized("Content-Encoding: gzip", body=encoded),
        "/some": sized("Content-Encoding: gzip", body=gzip.compress(bytes(4 << 20), 1)),
        "/huge": head("Content-Length: 99999999999999"),
    }
    async with answering(lambda request: (answers[request.split()[1].decode()], False)) as url:
        for way in ("lean", "general", "fsspec"):
            store = web_store(way, url)
            await store.get("warm")
            await store.fetch([stores.Request("some", limit=SIZE)])  # starts threads, and keeps little memory for reuse
            for name in ("gzip", "huge") if way == "lean" else ("gzip",):
                hard = resource.getrlimit(resource.RLIMIT_AS)[1]
                resource.setrlimit(resource.RLIMIT_AS, (memory_of_process("VmSize") + LIMIT, hard))
                try:
                    await store.fetch([stores.Request(name, limit=SIZE if name == "gzip" else None)])
                    kinds, message = [], "no error"
                except BaseException as error:
                    kinds, message = [kind.__name__ for kind in type(error).__mro__], str(error)
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
                print(json.dumps([f"{way} {name}", kinds, message]))
            await store.close()


codecs() if sys.argv[1] == "codecs" else asyncio.run(bodies())
"""
"""Reads with little memory left, and prints the errors as lines of JSON."""


@pytest.mark.processes
@pytest.mark.parametrize(("part", "count"), [("codecs", 7), ("bodies", 4)])
def test_errors_name_memory_that_runs_out(part: str, count: int):
    command = [sys.executable, "-c", PROGRAM, part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == count
    for name, kinds, message in outcomes:
        assert "ZarrError" in kinds, (name, kinds, message)
        assert "memory" in message, (name, message)
        assert "not valid" not in message, (name, message)
        assert "invalid" not in message, (name, message)
