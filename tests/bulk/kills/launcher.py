"""A process that has imported everything that jobs need, and forks a process for each command. That saves seconds."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import ROOT

__all__ = ["Launcher", "Running", "group_members"]

_TASK_BYTES = 4096
"""The size of a task, so that small files are divided into several ones."""


class Running:
    """A command that runs. It leads a group of processes, which its workers belong to."""

    def __init__(self, launcher: Launcher, pid: int, log: Path) -> None:
        self._launcher, self.pid, self._log = launcher, pid, log
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the command runs; negative for a signal."""
        if self._code is None:
            self._code = self._launcher.ask({"poll": self.pid})
        return self._code

    def wait(self, seconds: float = 120.0) -> int:
        """Wait until the command has ended, and return its exit code."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill_group()
                raise TimeoutError(f"the command did not end within {seconds:.0f} s: {self.output()}")
            time.sleep(0.01)
        return code

    def workers(self) -> list[int]:
        """Return the numbers of the worker processes."""
        return [
            pid for pid in group_members(self.pid) if pid != self.pid and b"resource_tracker" not in _command_line(pid)
        ]

    def stacks(self) -> str:
        """Return where the threads of the command and of its workers wait. This needs py-spy."""
        folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        if (spy := shutil.which("py-spy", path=folders)) is None:
            return "install py-spy to see where the threads of a command wait"
        calls = [[spy, "dump", "--pid", str(pid)] for pid in group_members(self.pid)]
        return "\n".join(subprocess.run(call, capture_output=True, text=True, check=False).stdout for call in calls)

    def kill_group(self) -> None:
        """Kill the command and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def output(self) -> str:
        """Return what the command has printed."""
        return self._log.read_text(errors="replace")


class Launcher:
    """Starts commands.

    Args:
        folder: The folder for their output.
        example: A file of the kind that the commands read.
    """

    def __init__(self, folder: Path, example: Path) -> None:
        self._folder, self._count = folder, 0
        self._started: list[Running] = []
        code = "import sys; from tests.bulk.kills import launcher; launcher.serve(sys.argv[1])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, example],
            cwd=ROOT,  # the first place where it looks for this module
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *words: Any, function: str = "", spawns: bool = False) -> Running:
        """Start a command of zarrasync, or a function of ``commands``.

        Args:
            *words: Its arguments.
            function: The name of the function.
            spawns: Whether worker processes of the command import everything again, as those of users do.
        """
        self._count += 1
        log = self._folder / f"{self._count}.log"
        request = {"words": [*map(str, words)], "function": function, "spawns": spawns, "log": str(log)}
        self._started.append(Running(self, self.ask(request), log))
        return self._started[-1]

    def close(self) -> None:
        """End all commands that still run, and the process that starts them."""
        for command in self._started:
            if command.poll() is None:
                command.kill_group()
        self._process.kill()  # processes that it has started may keep its output open
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def group_members(group: int) -> list[int]:
    """Return the numbers of the processes in a group that have not ended."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state, _, own_group = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(own_group) == group and state not in "ZX":
                found.append(int(name))
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# ------------------------------------------------------------------ the process


def serve(example: str) -> None:
    """Answer requests until the input ends.

    Args:
        example: A file of the kind that the commands read. Reading it imports all that they need.
    """
    import distributed  # noqa: F401  # so that commands need not import it
    import xarray as xr
    import zarr  # noqa: F401  # for readers

    import zarrasync.cli  # noqa: F401  # see above
    from zarrasync.bulk.files.planning import make_plan
    from zarrasync.bulk.files.planning.layout import split_rows

    xr.open_dataset(example).close()

    make_plan.split_rows = partial(split_rows, task_bytes=_TASK_BYTES)  # type: ignore[attr-defined]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif answer := os.fork():
            with contextlib.suppress(OSError):
                os.setpgid(answer, answer)  # here as well, so that the group exists when the answer is sent
        else:
            _run(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(request: dict[str, Any]) -> None:
    """Run a command in a forked process, and end it."""
    code = 70
    try:
        os.setpgid(0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1)  # shows where a command waits
        from tests.bulk.kills import commands
        from zarrasync.cli import main

        if not request["spawns"]:
            forking = multiprocessing.get_context("fork")
            multiprocessing.get_context = lambda method=None: forking  # type: ignore[assignment]
        function = getattr(commands, request["function"]) if request["function"] else main
        code = function(request["words"]) or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
