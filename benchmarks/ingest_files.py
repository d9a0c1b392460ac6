"""Join many netCDF files into one Zarr dataset with zarrasync, with xarray and dask, and with a loop on zarr-python.

    python benchmarks/ingest_files.py [--files N] [--megabytes N] [--s3 URL] [--rounds N] [--engines ENGINE …] [--folder DIRECTORY]

Each file has some hours of two global fields: temperatures as packed 16-bit integers, and precipitation as 32-bit
floats, in chunks of one hour, shuffled, with deflate level 1. The dataset has chunks of a file's hours and a sixteenth of
the globe, with zstd level 1. All engines store the values as in the files. Each run has a new process, and is compared
with the files afterwards.

Results are on local files, and with ``--s3`` in a bucket 'zarrasync' of that endpoint (with keys in the AWS_*
environment variables); ``--s3 radosgw`` starts Ceph's gateway, which keeps many objects on the disk. Seconds and CPU seconds include the start of processes,
but no compilation of Python modules: each engine first joins a single file, which is not measured. Memory is the highest sum of the proportional set sizes of all processes of the engine. Prints a table, and writes
ingest_files.json and ingest_files.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import servers
from harness import add_hidden, make_parser, markdown_table, medians, remove, rotate, save

LAT, LON = 721, 1440
CHUNKS = {"latitude": 181, "longitude": 360}
LEVEL = 1
NAMES: tuple[str, ...] = ("t2m", "tp")
MIB = 1 << 20
SAMPLE_SECONDS = 0.1
CODEC = {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}}

# ---------------------------------------------------------------------- files


def fields(hour: int, noise: np.ndarray) -> dict[str, np.ndarray]:
    """Return the stored values of an hour: waves that move, and weather of a smaller scale."""
    lat = np.linspace(-np.pi / 2, np.pi / 2, LAT, dtype="f4")[:, None]
    lon = np.linspace(0, 2 * np.pi, LON, dtype="f4")[None]
    weather = np.roll(noise, (37 * hour, 91 * hour), (0, 1))
    waves = 8 * np.sin(3 * lon + hour / 6) * np.cos(lat) + 3 * np.sin(9 * lon - hour / 9) * np.sin(5 * lat)
    kelvin = 255 + 40 * np.cos(lat) ** 2 + waves + weather
    rain = np.maximum(waves + 20 * weather - 4, 0) * np.float32(1e-4)
    mantissa, exponent = np.frexp(rain)  # keeps 12 bits, as the packing of forecasts does
    return {
        "t2m": np.round((kelvin - 265) / 0.002).astype("i2"),
        "tp": np.ldexp(np.round(mantissa * 4096) / 4096, exponent).astype("f4"),
    }


def smooth_noise() -> np.ndarray:
    """Return noise in which neighbours are similar."""
    noise: Any = np.random.default_rng(0).normal(size=(LAT, LON)).astype("f4")
    for _ in range(3):
        noise = sum(np.roll(noise, step, axis) for axis in (0, 1) for step in (-1, 0, 1)) / 6
    return noise


def write_file(path: Path, first_hour: int, hours: int, noise: np.ndarray) -> dict[str, int]:
    """Write a netCDF file. Return a checksum of each variable."""
    import netCDF4

    checksums = dict.fromkeys(NAMES, 0)
    with netCDF4.Dataset(path, "w") as file:
        for name, values in (
            ("latitude", np.linspace(90, -90, LAT, dtype="f4")),
            ("longitude", np.arange(LON, dtype="f4") / 4),
        ):
            file.createDimension(name, len(values))
            file.createVariable(name, "f4", (name,))[:] = values
        file.createDimension("time", None)
        times = file.createVariable("time", "i4", ("time",), chunksizes=(512,))
        times.units = "hours since 2000-01-01"
        times[:] = np.arange(first_hour, first_hour + hours)
        for name, dtype in zip(NAMES, ("i2", "f4"), strict=True):
            variable = file.createVariable(
                name, dtype, ("time", *CHUNKS), compression="zlib", complevel=1, shuffle=True,
                chunksizes=(1, LAT, LON), fill_value=-32767 if dtype == "i2" else None,
            )  # fmt: skip
            variable.set_auto_maskandscale(False)
            if dtype == "i2":
                variable.scale_factor, variable.add_offset = 0.002, 265.0
        for hour in range(hours):
            for name, values in fields(first_hour + hour, noise).items():
                file[name][hour] = values
                checksums[name] = zlib.crc32(np.ascontiguousarray(values), checksums[name])
    return checksums


def write_files(folder: Path, count: int, megabytes: float) -> dict[str, Any]:
    """Write all files, and a description with their checksums."""
    noise = smooth_noise()
    write_file(folder / "probe.nc", 0, 4, noise)
    hours = max(1, round(megabytes * 1e6 / ((folder / "probe.nc").stat().st_size / 4)))
    (folder / "probe.nc").unlink()
    paths = [folder / f"{number:04}.nc" for number in range(count)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        calls = [(path, number * hours, hours, noise) for number, path in enumerate(paths)]
        checksums = pool.starmap(write_file, calls, chunksize=1)
    description = {"hours": hours, "files": list(map(str, paths)), "checksums": checksums}
    (folder / "files.json").write_text(json.dumps(description))
    return description


# ---------------------------------------------------------------------- engines


class Job:
    """What an engine does: the files to join, and the destination.

    Args:
        description: The description of the files.
        target: A path or a URL.
        s3: Options of the object store; empty for files.
    """

    def __init__(self, description: dict[str, Any], target: str, s3: dict[str, Any]) -> None:
        self.files, self.hours, self.target, self.s3 = description["files"], description["hours"], target, s3
        self.chunks = {"time": self.hours, **CHUNKS}

    def zarr_store(self) -> Any:
        """Return the destination for zarr-python."""
        if not self.s3:
            return self.target
        from obstore.store import S3Store
        from zarr.storage import ObjectStore

        bucket, _, prefix = self.target.removeprefix("s3://").partition("/")
        client: Any = {"allow_http": True}
        return ObjectStore(
            S3Store(
                bucket, prefix=prefix, endpoint=self.s3["endpoint_url"], access_key_id=self.s3["key"],
                secret_access_key=self.s3["secret"], region="us-east-1", unsigned_payload=True, client_options=client,
            )
        )  # fmt: skip

    def encoding(self) -> dict[str, Any]:
        """Return xarray's encoding of both variables."""
        from zarr.codecs import ZstdCodec

        chunks = tuple(self.chunks.values())
        return {name: {"chunks": chunks, "compressors": (ZstdCodec(level=LEVEL),)} for name in NAMES}


def zarrasync(job: Job, executor: int | None = None) -> dict[str, Any]:
    from zarrasync import sync

    options: dict[str, Any] = {"storage_options": job.s3} if job.s3 else {}
    if executor is not None:
        options["executor"] = executor
    report = sync.ingest(job.files, job.target, concat="time", chunks=job.chunks, compressors=CODEC, **options)
    return {"requests": report.requests} if report.requests else {}


def open_all(job: Job, *, parallel: bool) -> Any:
    import xarray

    open_mfdataset: Any = xarray.open_mfdataset  # whose types do not allow the documented values
    return open_mfdataset(
        job.files, engine="netcdf4", combine="nested", concat_dim="time", data_vars="minimal", coords="minimal",
        compat="override", join="override", combine_attrs="override", parallel=parallel, decode_cf=False,
        chunks=dict.fromkeys(job.chunks, -1),
    )  # fmt: skip


def dask_threads(job: Job) -> None:
    with open_all(job, parallel=False) as dataset:
        dataset.to_zarr(job.zarr_store(), mode="w", encoding=job.encoding(), consolidated=True)


def dask_processes(job: Job) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(os.cpu_count(), threads_per_worker=1) as cluster,
        Client(cluster),
        open_all(job, parallel=True) as dataset,
    ):
        dataset.to_zarr(job.zarr_store(), mode="w", encoding=job.encoding(), consolidated=True)


def write_template(job: Job) -> None:
    """Write the metadata and the coordinates of the dataset."""
    import dask.array as da
    import xarray

    rows = job.hours * len(job.files)
    with xarray.open_dataset(job.files[0], decode_cf=False) as first:
        coords = {**first[[*CHUNKS]].coords, "time": ("time", np.arange(rows, dtype="i4"), first["time"].attrs)}
        shape = tuple({**first.sizes, "time": rows}[dim] for dim in job.chunks)
        variables = {
            name: (tuple(job.chunks), da.zeros(shape, dtype=first[name].dtype, chunks=-1), first[name].attrs)
            for name in NAMES
        }
        template = xarray.Dataset(variables, coords, first.attrs)
        template.to_zarr(job.zarr_store(), mode="w", compute=False, encoding=job.encoding(), consolidated=True)


def write_rows(job: Job, number: int) -> None:
    """Read a file with xarray, and write its rows with zarr-python."""
    import xarray
    import zarr

    rows = slice(number * job.hours, (number + 1) * job.hours)
    group: Any = zarr.open_group(job.zarr_store(), mode="r+")
    with xarray.open_dataset(job.files[number], engine="netcdf4", decode_cf=False, cache=False) as dataset:
        for name in NAMES:
            group[name][rows] = dataset[name].values


def loop(job: Job) -> None:
    write_template(job)
    for number in range(len(job.files)):
        write_rows(job, number)


def loop_processes(job: Job) -> None:
    write_template(job)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(partial(write_rows, job), range(len(job.files)), chunksize=1)
        pool.close()
        pool.join()


ENGINES: dict[str, Any] = {
    "zarrasync": zarrasync,
    "zarrasync, 2 processes": partial(zarrasync, executor=2),
    "xarray + dask, threads": dask_threads,
    "xarray + dask, processes": dask_processes,
    "loop": loop,
    "loop, 2 processes": loop_processes,
}

# ---------------------------------------------------------------------- measuring


def tree_of(root: int) -> list[int]:
    """Return the numbers of a process and of all processes below it."""
    below: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            below.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:  # which grows
        found += below.get(pid, [])
    return found


def memory_of(root: int) -> int:
    """Return the bytes of memory of a process and of all processes below it, in which shared pages count once."""
    total = 0
    for pid in tree_of(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        total += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return total


def run(command: list[str], log: Path) -> dict[str, Any]:
    """Run a process, and return its last line of output with seconds, CPU seconds and memory."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    peak, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(SAMPLE_SECONDS):
            peak = max(peak, memory_of(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    watcher.join()
    if process.returncode:
        last = log.read_text().strip().splitlines()[-1:] or ["no output"]
        return {"failed": last[0][:300]}
    cpu = usage.ru_utime + usage.ru_stime  # of ended children as well
    return {"s": seconds, "cpu_s": cpu, "peak_mib": peak / MIB, **json.loads(output.splitlines()[-1])}


def compare(job: Job, checksums: list[dict[str, int]]) -> str:
    """Compare stored values with the files. Return the first difference, or nothing."""
    import zarr

    group: Any = zarr.open_group(job.zarr_store(), mode="r")
    if list(group["time"][:]) != list(range(job.hours * len(job.files))):
        return "time differs"
    for number, expected in enumerate(checksums):
        for name in NAMES:
            values = np.ascontiguousarray(group[name][number * job.hours : (number + 1) * job.hours])
            if zlib.crc32(values) != expected[name]:
                return f"{name} differs in the rows of {job.files[number]}"
    return ""


def join_files(source: Path, folder: Path, name: str, s3: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Join the files that a directory describes in a new process. Return the destination and the result."""
    target = f"s3://zarrasync/{uuid.uuid4().hex}" if s3 else f"{folder}/{uuid.uuid4().hex}.zarr"
    command = [sys.executable, __file__, "--worker", name, "--source", str(source), "--target", target]
    return target, run([*command, "--options", json.dumps(s3)], folder / "log")


def compile_modules(folder: Path, description: dict[str, Any], names: list[str], s3: dict[str, Any]) -> None:
    """Join one file with each engine, so that Python has compiled all modules."""
    first = folder / "first"
    first.mkdir(exist_ok=True)
    (first / "files.json").write_text(json.dumps({**description, "files": description["files"][:1]}))
    for name in names:
        target, _ = join_files(first, folder, name, s3)
        remove(target, s3)


def measure(folder: Path, description: dict[str, Any], names: list[str], s3: dict[str, Any], rounds: int) -> Any:
    """Return the results of all engines by name."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    compile_modules(folder, description, names, s3)
    for number in range(rounds):
        for name in rotate(names, number):
            target, result = join_files(folder, folder, name, s3)
            if "failed" not in result and (
                difference := compare(Job(description, target, s3), description["checksums"])
            ):
                result = {"failed": difference}
            results[name].append(result)
            print("S3" if s3 else "files", name, result, flush=True)
            remove(target, s3)
    return {name: medians(runs) for name, runs in results.items()}


def table(section: dict[str, Any]) -> str:
    """Return the table of all results."""
    rows = []
    for setting, results in section["rows"].items():
        for name, result in results.items():
            if "failed" in result:
                rows.append([setting, name, "failed", "–", "–", "–"])
            else:
                numbers = [f"{result['s']:.1f}", f"{result['cpu_s']:.1f}", f"{result['peak_mib']:,.0f}"]
                requests = f"{result['requests']:,.0f}" if setting == "S3" and "requests" in result else "–"
                rows.append([setting, name, *numbers, requests])
    return markdown_table(["into", "", "seconds", "CPU seconds", "memory, MiB", "requests"], rows, labels=2)


def main() -> None:
    parser = make_parser(__doc__, engines=ENGINES, rounds=1)
    parser.add_argument("--files", type=int, default=200, help="the number of files")
    parser.add_argument("--megabytes", type=float, default=50, help="the size of each file")
    parser.add_argument("--s3", help="the endpoint of an S3 server, or 'radosgw' to start one; also write there")
    parser.add_argument("--only-s3", action="store_true", help="do not write local files")
    parser.add_argument("--folder", help="the directory for temporary files")
    add_hidden(parser, "--worker", "--source", "--target", "--options")
    args: argparse.Namespace = parser.parse_args()
    if args.worker:
        warnings.simplefilter("ignore")
        description = json.loads(Path(args.source, "files.json").read_text())
        print(json.dumps(ENGINES[args.worker](Job(description, args.target, json.loads(args.options))) or {}))
        return
    nbytes = int(args.files * args.megabytes * 1e6)
    settings: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ingest-files-", dir=args.folder) as folder,
        servers.s3_options(args.s3, nbytes) as s3,
    ):
        description = write_files(Path(folder), args.files, args.megabytes)
        total = sum(os.path.getsize(file) for file in description["files"])
        raw = len(description["files"]) * description["hours"] * LAT * LON * 6
        print(
            f"{args.files} files, {total / 1e6:,.0f} MB, {raw / 1e6:,.0f} MB of values, {description['hours']} hours each"
        )
        for setting, options in (("files", {}), ("S3", s3)):
            if (setting == "S3") == bool(options) and not (args.only_s3 and not options):
                names = list(args.engines or ENGINES)
                settings[setting] = measure(Path(folder), description, names, options, args.rounds)
    save(args, "ingest_files", table, {"files": args.files, "rounds": args.rounds, "rows": settings})


if __name__ == "__main__":
    main()
