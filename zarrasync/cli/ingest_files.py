"""The command ingest for many files: in one call, or as a plan whose tasks run anywhere."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from zarrasync import config as settings
from zarrasync import sync
from zarrasync.bulk.files.functions import FilesRequest, make_job
from zarrasync.bulk.files.identify import means_files
from zarrasync.bulk.files.job import Job
from zarrasync.bulk.files.plan import JobPlan
from zarrasync.bulk.files.pool import Workers
from zarrasync.cli.arguments import FORMATS, count, destination, options
from zarrasync.cli.console import Console, show_log
from zarrasync.cli.monitoring import progress_of, save_report
from zarrasync.display.text import counted
from zarrasync.stores import CountingStore, resolve

__all__ = ["add_arguments", "run"]

_ACTIONS = ("plan", "run", "finish", "abandon")
_FOR_FILES = ("concat", "append", "region", "encoding", "decode", "dims", "engine", "engine_option")
"""Arguments with which a single file also becomes a dataset."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments for many files."""
    url = next(action for action in command._actions if action.dest == "url")  # noqa: SLF001  # no public list
    url.nargs, url.help = "+", "the files: paths, URLs or patterns; or one of plan, run, finish and abandon"
    command.add_argument("--resume", action="store_true", help="complete an interrupted job, which is the default")
    group = command.add_argument_group("many files")
    group.add_argument("--concat", metavar="DIM", help="join files along this dimension")
    group.add_argument("--append", action="store_true", help="add rows to an existing dataset, or create it")
    group.add_argument(
        "--region", metavar="auto|A:B", help="write existing rows again: auto finds them by their labels"
    )
    group.add_argument(
        "--on-duplicate", choices=("error", "skip", "replace"), default="error", help="for repeated labels"
    )
    group.add_argument(
        "--on-gap", choices=("report", "error", "ignore"), default="report", help="for gaps in the labels"
    )
    group.add_argument("--encoding", metavar="FILE", help="a JSON file with parameters of arrays by variable")
    group.add_argument("--decode", action="store_true", help="unpack scale_factor and add_offset")
    group.add_argument("--dims", metavar="DIM,…", help="the names of axes of .npy, .npz and HDF5 arrays without names")
    group.add_argument("--engine", help="xarray's engine for the files")
    group.add_argument(
        "--engine-option", action="append", default=[], metavar="NAME=VALUE", help="an argument of xarray's engine"
    )
    group.add_argument("--processes", type=count, default=1, metavar="N", help="share the work among N processes")
    group.add_argument(
        "--wait", type=float, default=600.0, metavar="SECONDS", help="wait for another job (default: 600)"
    )
    group.add_argument("--plan", metavar="FILE", help="with plan: the file to write")
    group.add_argument("--tasks", type=count, default=0, metavar="K", help="with plan: the number of tasks")
    group.add_argument(
        "--task", type=count, action="append", metavar="N", help="with run: only this task (may be repeated)"
    )


def run(args: argparse.Namespace, console: Console) -> int | None:
    """Run the command. Return ``None`` if its only source is an array or a file that does not need this module.

    Raises:
        ValueError: If arguments are missing, or the plan cannot be read.
    """
    if args.resume and args.overwrite:
        raise ValueError("pass --resume or --overwrite, not both: --overwrite replaces the stored values")
    action = args.url[0] if args.url[0] in _ACTIONS and not os.path.exists(args.url[0]) else ""
    if action in ("run", "finish", "abandon"):
        return _continue(action, args, console)
    if action:
        args.url = args.url[1:]
    is_pattern = len(args.url) == 1 and means_files(args.url[0]) and any(mark in args.url[0] for mark in "*?[")
    if not action and len(args.url) == 1 and not is_pattern and not any(getattr(args, name) for name in _FOR_FILES):
        return None
    if not args.url:
        raise ValueError("no files: zarrasync ingest plan FILES… DEST --concat DIM --plan PLAN")
    with destination(args) as dest, show_log("zarrasync.bulk"):
        if action:
            return _plan(args, console, dest)
        request = _request(args, dest)
        report = sync.ingest(
            **{
                name: value
                for name, value in vars(request).items()
                if name not in ("sources", "options", "group", "tasks")
            },
            source=request.sources,
            source_group=request.group,
            **request.options,
        )
    save_report(args, report)
    console.data(report.to_dict()) if console.as_json else console.text(report)
    return 0


def _request(args: argparse.Namespace, dest: Any) -> FilesRequest:
    """Return the arguments of ``ingest``."""
    layout = {name: value for name, value in (("chunks", args.chunks), ("shards", args.shards)) if value != "keep"}
    if args.to:
        layout["zarr_format"] = FORMATS[args.to]
    if args.compressor != "auto":
        layout["compressors"] = args.compressor
    encoding = None if args.encoding is None else _load_json(args.encoding)
    region = args.region
    if region is not None and region != "auto":
        start, colon, stop = region.partition(":")
        if not (colon and start.isdigit() and stop.isdigit()):
            raise ValueError(f"--region must be auto or A:B, found {region!r}")
        region = slice(int(start), int(stop))
    return FilesRequest(
        list(args.url),
        dest,
        args.concat,
        path=args.dest_path,
        mode="w" if args.overwrite else "a",
        append=args.append,
        region=None if region is None else region if region == "auto" else {args.concat: region},
        on_duplicate=args.on_duplicate,
        on_gap=args.on_gap,
        variables=args.variable,
        encoding=encoding,
        decode=args.decode,
        dims=args.dims,
        engine=args.engine,
        engine_options=options(args.engine_option),
        group=args.path,
        source_options=options(args.option),
        storage_options=options(args.dest_option),
        processes=args.processes,
        wait=args.wait,
        verify=args.verify,
        progress=progress_of(args),
        options=layout,
    )


# ------------------------------------------------------------------ plans


def _plan(args: argparse.Namespace, console: Console, dest: Any) -> int:
    if not args.plan:
        raise ValueError("pass --plan FILE, the file to write the plan to")
    request = _request(args, dest)
    request.tasks = args.tasks
    workers = Workers(args.processes)
    place = args.dest if "://" in args.dest else os.path.abspath(args.dest)

    def save(plan: JobPlan) -> None:
        document = {"dest": place, "verify": args.verify, **plan.to_json()}
        temporary = Path(f"{args.plan}.partial")
        temporary.write_text(json.dumps(document))
        temporary.replace(args.plan)

    try:
        plan, report = make_job(request).plan_only(workers, save)
    finally:
        workers.close()
    if plan is None:
        console.text(report)
        return 0
    if console.as_json:
        console.data({"tasks": len(plan.parts), "files": report.files, "rows": report.rows, "notes": report.notes})
    else:
        console.text(f"{counted(len(plan.parts), 'task')} in {args.plan}: run them with")
        console.text(f"  zarrasync ingest run {args.plan} --task N    (N from 0 to {len(plan.parts) - 1})")
        console.text("\n".join([f"  zarrasync ingest finish {args.plan}", *report.notes]))
    return 0


def _continue(action: str, args: argparse.Namespace, console: Console) -> int:
    """Run tasks of a plan, finish it, or abandon it."""
    if len(args.url) > 1:
        raise ValueError(f"zarrasync ingest {action} needs one plan, found {len(args.url)} files")
    document = _load_json(args.dest)
    dest, verify = document.pop("dest", None), document.pop("verify", False) or args.verify
    plan = JobPlan.from_json(document)
    plan.reader.storage_options.update(options(args.option) or {})  # type: ignore[attr-defined]  # a new dict
    store = CountingStore(resolve(dest, options(args.dest_option)))
    job = Job.of_plan(plan, store, settings.get())
    if action == "abandon":
        job.abandon(plan)
        console.text("the plan is abandoned")
        return 0
    if action == "finish":
        report = job.finish_planned(plan, verify=verify)
    else:
        workers = Workers(args.processes)
        try:
            report = job.run_planned(plan, workers, args.task, verify=verify)
        finally:
            workers.close()
    console.data(report.to_dict()) if console.as_json else console.text(report)
    return 0


def _load_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: If the file cannot be read, or contains something else.
    """
    try:
        value = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain a JSON object, found {type(value).__name__}")
    return value
