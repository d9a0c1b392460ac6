"""Measure the cost of the checksum of zstd frames, compared with no checksum and the codec ``crc32c``.

python benchmarks/checksums.py   prints a Markdown table of CPU time per chunk
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from zarrasync.codecs import ArraySpec, BytesCodec, Codec, CodecChain, Crc32cCodec, ZstdCodec
from zarrasync.model import dtypes

ROUNDS = 15
CODECS: dict[str, list[Codec]] = {
    "none": [ZstdCodec(checksum=False)],
    "zstd": [ZstdCodec(checksum=True)],
    "crc32c": [ZstdCodec(checksum=False), Crc32cCodec()],
}


def samples() -> dict[str, np.ndarray[Any, Any]]:
    """Return values that compress well, and values that hardly compress."""
    rng = np.random.default_rng(0)
    return {
        "uint16, 2.5 : 1": np.cumsum(rng.integers(-3, 4, size=2 << 20)).astype("u2"),
        "float32, 1.1 : 1": np.cumsum(rng.normal(size=1 << 20)).astype("f4"),
    }


def best(tasks: list[Callable[[], Any]], calls: int) -> list[float]:
    """Return the least CPU microseconds per call of each task, which are measured in turns."""
    least = [float("inf")] * len(tasks)
    for _ in range(ROUNDS):
        for number, task in enumerate(tasks):
            begin = time.process_time()
            for _ in range(calls):
                task()
            least[number] = min(least[number], time.process_time() - begin)
    return [1e6 * seconds / calls for seconds in least]


def main() -> None:
    """Print the table."""
    print("| values | chunk | " + " | ".join(f"{step}, {name}" for step in ("write", "read") for name in CODECS) + " |")
    print("|---|--:|" + "--:|" * 2 * len(CODECS))
    for label, values in samples().items():
        for size in (16 << 10, 256 << 10, 4 << 20):
            chunk = values[: size // values.itemsize]
            spec = ArraySpec(chunk.shape, dtypes.from_numpy(chunk.dtype), chunk.dtype.type(0))
            chains = [CodecChain.of([BytesCodec("little"), *codecs]).bind(spec) for codecs in CODECS.values()]
            encoded = [bytes(chain.encode(chunk) or b"") for chain in chains]
            calls = max(1, (8 << 20) // size)
            writes = best([partial(chain.encode, chunk) for chain in chains], calls)
            pairs = zip(chains, encoded, strict=True)
            reads = best([partial(chain.decode, data) for chain, data in pairs], calls)
            columns = " | ".join(f"{value:,.0f} µs" if value > 100 else f"{value:.1f} µs" for value in writes + reads)
            print(f"| {label} | {size >> 10:,} KiB | {columns} |", flush=True)


if __name__ == "__main__":
    main()
