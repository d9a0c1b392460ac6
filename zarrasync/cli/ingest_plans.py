"""The commands ``ingest plan``, ``run``, ``finish`` and ``abandon``: a job whose tasks run anywhere."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from zarrasync import sync
from zarrasync._util.redact import public_url
from zarrasync.cli import ingest as files
from zarrasync.cli.arguments import (
    CommandParser,
    Commands,
    RedactingParser,
    add_monitoring,
    add_processes,
    add_several,
    check_destination,
    count,
    is_local_archive,
    monitored,
    options,
)
from zarrasync.cli.console import INCOMPLETE, Console, show_log
from zarrasync.display.progress import report_progress
from zarrasync.display.text import counted

_ARRAY_JOBS = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX")
"""Variables in which schedulers (Slurm, Kubernetes, AWS Batch) pass the number of a task of an array job."""
_ACTIONS = ("check", "plan", "run", "finish", "abandon")


def is_plan_command(words: Sequence[str]) -> bool:
    """Return whether arguments are a command for plans. A file with such a name is written as ``./plan``."""
    return len(words) > 1 and words[0] == "ingest" and words[1] in _ACTIONS


def make_plan_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands for plans, which follow the word ``ingest``."""
    parser = RedactingParser(prog="zarrasync ingest", description="Ingest files as tasks that run anywhere.")
    commands = Commands(parser.add_subparsers(dest="action", required=True, parser_class=CommandParser))
    _add_plan(commands)
    _add_check(commands)
    _add_actions(commands)
    return parser


def _add_plan(commands: Commands) -> None:
    plan = commands(
        "plan",
        "write a plan, whose tasks any process or machine can run",
        _plan,
        examples=[
            "ingest plan 'nc/*.nc' s3://bucket/out.zarr --concat time --tasks 100",
            "ingest plan 'nc/*.nc' out.zarr --concat time --plan s3://bucket/plan.json",
        ],
    )
    plan.add_argument("--plan", metavar="FILE", help="the path or URL of the plan (default: inside the destination)")
    plan.add_argument("--tasks", type=count, default=0, metavar="K", help="the number of tasks (default: by size)")
    files.add_arguments(plan)
    files.add_output(plan)


def _add_check(commands: Commands) -> None:
    check = commands(
        "check",
        "list the problems of files, and write nothing",
        _check,
        examples=["ingest check 'nc/*.nc'", "ingest check 'nc/*.nc' --concat time --processes 8"],
    )
    files.add_arguments(check, "check")
    check.set_defaults(
        verify=False,
        dest_path="",
        dest_option=[],
        overwrite=False,
        chunks="keep",
        shards="keep",
        zarr_format=None,
        compressor="auto",
    )


def _add_actions(commands: Commands) -> None:
    """Add the commands for existing plans: run, finish, abandon."""
    run = commands(
        "run",
        "run tasks of a plan: those that are not finished, or some of them",
        _run,
        examples=[
            "ingest run s3://bucket/out.zarr --task 42",
            "ingest run plan.json --task auto",
            "ingest run plan.json --processes 8",
        ],
        of_node=False,
    )
    run.add_argument(
        "--task",
        type=_task,
        action="append",
        metavar="N|auto",
        help="only this task, from 0 (may be repeated); auto: the number of this task of an array job of Slurm, Kubernetes "
        "or AWS Batch",
    )
    add_processes(run, "run tasks")
    finish = commands(
        "finish",
        "check that all tasks of a plan have been run, and make the rows visible",
        _finish,
        examples=["ingest finish s3://bucket/out.zarr", "ingest finish plan.json"],
        of_node=False,
    )
    abandon = commands(
        "abandon",
        "drop a plan; other jobs can then change the dataset",
        _abandon,
        examples=["ingest abandon s3://bucket/out.zarr", "ingest abandon plan.json"],
        of_node=False,
    )
    for command in (run, finish, abandon):
        command.add_argument("plan", help="the path or URL of the plan, or its destination")
        command.add_argument("--path", default="", help="the path of the group or array in the destination")
        command.add_argument("--source-root", default=".", metavar="DIR", help="where relative paths of files start")
        add_several(command, "--dest-option", "NAME=VALUE", "a storage option of the destination")
    for command in (run, finish):
        command.add_argument("--verify", action="store_true", help="read all values back and compare them")
        add_monitoring(command)


def _check(args: argparse.Namespace, console: Console) -> int:
    from zarrasync.bulk.files.ingestion import check_ingestion

    return console.report(check_ingestion(files.files_parameters(args, None)))


def _task(text: str) -> int:
    """Parse the number of a task, or find it in the variables of a scheduler."""
    if text != "auto":
        return count(text)
    for name in _ARRAY_JOBS:
        if (value := os.environ.get(name)) is not None:
            return count(value)
    raise argparse.ArgumentTypeError(f"auto needs one of the variables {', '.join(_ARRAY_JOBS)}, and none is set")


def _plan(args: argparse.Namespace, console: Console) -> int:
    from zarrasync.bulk.files.ingestion import plan_ingestion

    files.check_mode(args)
    if args.concat is None:
        args.parser.error("--concat DIM is required, the dimension to join files along")
    if args.verify:
        args.parser.error("pass --verify to `ingest run` and `ingest finish`, which write and can compare values")
    check_destination(args)
    if is_local_archive(args.dest):
        args.parser.error("a plan needs a directory or an object store, because only one process can write an archive")
    with show_log("zarrasync.bulk"):
        plan = plan_ingestion(files.files_parameters(args, args.dest, tasks=args.tasks), args.plan)
    place, tasks = _name(args), plan.tasks
    lines = [f"{counted(len(tasks), 'task')} in {place}: {'run them' if tasks else 'complete it'} with"]
    if tasks:
        lines.append(f"  zarrasync ingest run {place} --task N    (N from 0 to {len(tasks) - 1})")
    lines += [f"  zarrasync ingest finish {place}", *plan.notes, *plan.left_out]
    facts = {"plan": plan.location, "tasks": len(tasks), "notes": plan.notes, "left_out": plan.left_out}
    console.result(facts, *lines)
    return INCOMPLETE if plan.left_out else 0


def _name(args: argparse.Namespace) -> str:
    """Return the argument of the other commands that names the plan, as the user has written it."""
    return public_url(args.plan or "/".join([args.dest.rstrip("/"), *filter(None, [args.dest_path.strip("/")])]))


def _run(args: argparse.Namespace, console: Console) -> int:
    plan = _open(args)
    with monitored(args) as watch:
        report = watch.report = plan.run(
            args.task,
            executor=args.processes or None,
            verify=args.verify,
            source_options=options(args.option),
            progress=watch.progress,
        )
    return console.report(report)


def _finish(args: argparse.Namespace, console: Console) -> int:
    plan = _open(args)
    name = plan.explain().destination.rstrip("/").rpartition("/")[2]
    with monitored(args) as watch, report_progress(watch.progress, 0, f"finish {name}"):
        report = watch.report = plan.finish(verify=args.verify)
    return console.report(report)


def _abandon(args: argparse.Namespace, console: Console) -> int:
    _open(args).abandon()
    return console.result({"abandoned": args.plan}, "the plan is abandoned")


def _open(args: argparse.Namespace) -> Any:
    return sync.open_plan(
        args.plan, path=args.path, source_root=args.source_root, storage_options=options(args.dest_option)
    )
