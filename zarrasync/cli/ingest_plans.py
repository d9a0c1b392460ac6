"""The commands ``ingest plan``, ``run``, ``finish`` and ``abandon``: a job whose tasks run anywhere."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zarrasync import config as settings
from zarrasync._util.redact import has_secrets, public_url
from zarrasync.bulk.files.functions import plan_files
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.planned_job import PlannedJob
from zarrasync.bulk.files.running.pool import FileWorkers
from zarrasync.bulk.jobs.job_names import job_name
from zarrasync.cli import ingest_files as files
from zarrasync.cli.arguments import (
    CommandParser,
    Commands,
    RedactingParser,
    add_destination,
    add_layout,
    count,
    destination,
    options,
)
from zarrasync.cli.console import INCOMPLETE, Console, show_log
from zarrasync.cli.messages import error_line
from zarrasync.cli.monitoring import add_monitoring, monitored
from zarrasync.display.progress import report_progress
from zarrasync.display.text import counted
from zarrasync.stores import resolve

__all__ = ["is_plan_command", "make_plan_parser"]

_SECRETS = ".secrets"
"""The suffix of the file next to a plan with URLs and options that contain credentials. Only its owner can read it."""
_ACTIONS = ("plan", "run", "finish", "abandon")


def is_plan_command(words: Sequence[str]) -> bool:
    """Return whether arguments are a command for plans. A file with such a name is written as ``./plan``."""
    return len(words) > 1 and words[0] == "ingest" and words[1] in _ACTIONS


def make_plan_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands for plans, which follow the word ``ingest``."""
    parser = RedactingParser(prog="zarrasync ingest", description="Ingest files as tasks that run anywhere.")
    commands = Commands(parser.add_subparsers(dest="action", required=True, parser_class=CommandParser))
    plan = commands(
        "plan",
        "write a plan, whose tasks any process or machine can run",
        _plan,
        examples=["ingest plan 'nc/*.nc' s3://bucket/out.zarr --concat time --tasks 100 --plan plan.json"],
    )
    plan.add_argument("--plan", required=True, metavar="FILE", help="the file to write")
    plan.add_argument("--tasks", type=count, default=0, metavar="K", help="the number of tasks (default: by size)")
    files.add_arguments(plan)
    add_destination(plan)
    add_layout(plan, "keep", "3")
    plan.set_defaults(compressor="auto")
    plan.add_argument("--variable", action="append", default=[], help="write only this variable (may be repeated)")
    run = commands(
        "run",
        "run tasks of a plan: those that are not finished, or some of them",
        _run,
        examples=["ingest run plan.json --task 42", "ingest run plan.json --processes 8"],
        of_node=False,
    )
    run.add_argument(
        "--task", type=count, action="append", metavar="N", help="only this task, from 0 (may be repeated)"
    )
    run.add_argument("--processes", type=count, default=1, metavar="N", help="share the tasks among N processes")
    finish = commands(
        "finish",
        "check that all tasks of a plan have been run, and make the rows visible",
        _finish,
        examples=["ingest finish plan.json"],
        of_node=False,
    )
    abandon = commands(
        "abandon",
        "drop a plan; other jobs can then change the dataset",
        _abandon,
        examples=["ingest abandon plan.json"],
        of_node=False,
    )
    for command in (run, finish, abandon):
        command.add_argument("plan", help="the file that `ingest plan` has written")
        command.add_argument(
            "--dest-option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a storage option of the destination",
        )
    for command in (run, finish):
        command.add_argument("--verify", action="store_true", help="read all values back and compare them")
        add_monitoring(command)
    return parser


def _plan(args: argparse.Namespace, console: Console) -> int:
    files.check_mode(args)
    if args.concat is None:
        args.parser.error("--concat DIM is required, the dimension to join files along")
    workers = FileWorkers(args.processes)
    place = _absolute(args.dest)

    def save(plan: FilesPlan) -> None:
        secrets = {**plan.secrets, **({"dest": place} if has_secrets(place) else {})}
        document = {
            "dest": public_url(place),
            "verify": args.verify,
            "secrets": bool(secrets),
        }
        if secrets:
            _put(f"{args.plan}{_SECRETS}", secrets)
        else:
            Path(f"{args.plan}{_SECRETS}").unlink(missing_ok=True)
        _put(args.plan, {**document, **plan.public.to_json()})

    try:
        with destination(args) as dest, show_log("zarrasync.bulk"):
            request = files.files_request(args, dest)
            request.tasks = args.tasks
            plan, report = plan_files(request, workers, save)
    finally:
        workers.close()
    if plan is None:
        console.data({"tasks": 0, "files": 0, "rows": 0, "notes": []}) if console.as_json else console.text(report)
        return 0
    if console.as_json:
        console.data(
            {
                "tasks": len(plan.parts),
                "files": report.files,
                "rows": report.rows,
                "notes": report.notes,
                "left_out": report.left_out,
            }
        )
    else:
        console.text(f"{counted(len(plan.parts), 'task')} in {args.plan}: run them with")
        console.text(f"  zarrasync ingest run {args.plan} --task N    (N from 0 to {len(plan.parts) - 1})")
        console.text("\n".join([f"  zarrasync ingest finish {args.plan}", *report.remarks()]))
    return INCOMPLETE if report.losses() else 0


def _run(args: argparse.Namespace, console: Console) -> int:
    job, verify, name = _load(args)
    with monitored(args) as watch, report_progress(watch.progress, 0, f"ingest {name}") as progress:
        workers = FileWorkers(args.processes)
        try:
            report = watch.report = job.run_independently(workers, args.task, verify=verify, progress=progress)
        finally:
            workers.close()
    return console.report(report)


def _finish(args: argparse.Namespace, console: Console) -> int:
    job, verify, name = _load(args)
    with monitored(args) as watch, report_progress(watch.progress, 0, f"finish {name}"):
        report = watch.report = job.finish(verify=verify)
    return console.report(report)


def _abandon(args: argparse.Namespace, console: Console) -> int:
    job, _, _ = _load(args)
    job.abandon()
    console.data({"abandoned": args.plan}) if console.as_json else console.text("the plan is abandoned")
    return 0


def _put(path: str, document: Mapping[str, Any]) -> None:
    """Write a file that only its owner can read, completely or not at all."""
    temporary = Path(f"{path}.partial")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(document, file)
    temporary.replace(path)


def _absolute(dest: str) -> str:
    """Return a destination that means the same in other directories."""
    path, bar, rest = dest.partition("|")
    return (path if "://" in path else os.path.abspath(path)) + bar + rest


def _load(args: argparse.Namespace) -> tuple[PlannedJob, bool, str]:
    """Return the job of a plan, whether to verify values, and the name of the destination."""
    document = files.load_json(args.plan)
    dest, needs_secrets = document.pop("dest", None), document.pop("secrets", False)
    verify = document.pop("verify", False) or getattr(args, "verify", False)
    try:
        plan = FilesPlan.from_json(document)
    except ValueError as error:
        raise ValueError(f"{args.plan} is {error_line(error)}") from error
    if needs_secrets:
        secrets = files.load_json(f"{args.plan}{_SECRETS}")
        plan, dest = plan.with_secrets(secrets), secrets.get("dest", dest)
    plan.reader.storage_options.update(options(args.option) or {})  # type: ignore[attr-defined]  # a new dict
    store = resolve(dest, options(args.dest_option))
    return PlannedJob.of(plan, store, settings.get()), verify, job_name(store, plan.path)
