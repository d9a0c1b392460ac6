"""Tiers: which tests run, by what they need.

A test belongs to the tier that its closest marker names. Without one, what it uses decides: arguments that Hypothesis
draws, a fixture that starts a server, a store behind a server, or another environment. All other tests are in the tier
``unit``, and fail if they bind or connect an internet socket, or start a process.

``pytest`` runs the unit tests, and the tests of other tiers that are marked ``smoke``. Tests of a file, or single tests,
that the command line names run in any tier.
"""

from __future__ import annotations

import _posixsubprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest

from tests.support.store_kinds import SERVED

__all__ = ["TIERS", "tier_of"]

TIERS = {
    "unit": "needs no server, no process, and no network port",
    "servers": "needs a server: moto, nginx, an emulator, or one of its own; or a browser",
    "processes": "starts processes, and kills some of them",
    "random": "draws its cases: Hypothesis, simulations, jobs",
    "foreign": "runs packages and tests of other projects, or reads the stores that they wrote",
    "docs": "runs the code of the documentation",
}
SERVER_FIXTURES = {"s3_endpoint", "gcs_endpoint", "azure_endpoint", "bucket", "google", "http", "certificate"}


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    for mark in item.iter_markers():
        if mark.name in TIERS:
            return mark.name
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return "random"
    fixtures = set(getattr(item, "fixturenames", ()))
    if "zarr2" in fixtures:
        return "foreign"
    return "servers" if SERVER_FIXTURES & fixtures or SERVED & _kinds(item) else "unit"


def _kinds(item: pytest.Item) -> set[str]:
    """Return the parameters of a test that are strings, without what names our stores of other libraries."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {value.removeprefix("ours-") for value in parameters if isinstance(value, str)}


# ------------------------------------------------------------------ choice


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier",
        action="append",
        choices=[*TIERS, "all"],
        default=[],
        help="run the tests of this tier only; several are possible",
    )
    group.addoption("--without", action="append", choices=list(TIERS), default=[], help="run no test of this tier")
    group.addoption(
        "--share", type=int, default=1, metavar="N", help="run one test out of N of those outside of --whole"
    )
    group.addoption(
        "--draw", default="", metavar="TEXT", help="draw other tests with --share, such as those of a commit"
    )
    group.addoption("--slow", type=int, default=0, metavar="N", help="run one slow test out of N; by default, none")
    group.addoption("--most", type=int, default=0, metavar="N", help="run at most N tests; by default, any number")
    group.addoption("--whole", action="append", default=[], metavar="DIRECTORY", help="run all tests of a directory")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "slow: takes more than ten seconds; runs with --slow or if it is named")
    config.addinivalue_line("markers", "smoke: proves a real part, and runs with the unit tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen tiers. The choice is the same in every process and on every machine."""
    chosen = set(filter(_chooser(config), items))
    if most := config.getoption("most"):
        draw = config.getoption("draw")
        chosen = set(sorted(chosen, key=lambda item: zlib.crc32(f"{draw}{item.nodeid}".encode()))[:most])
    left_out = [item for item in items if item not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in chosen]
    counts = Counter(map(tier_of, items))
    config.stash[_COUNTS] = ", ".join(f"{counts[name]:,} {name}" for name in TIERS if counts[name])


def _chooser(config: pytest.Config) -> Callable[[pytest.Item], bool]:
    tiers, without = set(config.getoption("tier")), set(config.getoption("without"))
    share, slow, draw = (config.getoption(name) for name in ("share", "slow", "draw"))
    whole = tuple(f"{directory.rstrip('/')}/" for directory in config.getoption("whole"))
    names = tuple(argument for argument in config.args if "::" in argument or argument.endswith(".py"))

    def is_chosen(item: pytest.Item) -> bool:
        if not tiers and any(item.nodeid.startswith(_relative(name, config)) for name in names):
            return True
        tier = tier_of(item)
        is_smoke = not tiers and item.get_closest_marker("smoke") is not None
        if tier in without or not (is_smoke or tier in (tiers or {"unit"}) or "all" in tiers):
            return False
        parts = 1 if item.nodeid.startswith(whole) else share
        if item.get_closest_marker("slow"):
            parts *= slow
        return parts > 0 and zlib.crc32(f"{draw}{item.nodeid}".encode()) % parts == 0

    return is_chosen


def _relative(argument: str, config: pytest.Config) -> str:
    return argument.removeprefix(f"{config.rootpath}/").removeprefix("./")


_COUNTS = pytest.StashKey[str]()


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return f"tiers: {config.stash.get(_COUNTS, '')}"


# ------------------------------------------------------------------ what unit tests may not use

_used: list[str] | None = None
"""What the running unit test has used; ``None`` while no unit test runs."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _used is None:
        return
    is_internet = event in ("socket.bind", "socket.connect") and isinstance(arguments[1], tuple)
    if is_internet and arguments[1][:2] != ("::1", 0):  # urllib3 looks for IPv6 when it is imported
        _used.append(f"{event} {arguments[1]}")
    is_process = event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
    if is_process and arguments[:1] != ("uname",):  # the module platform asks for the processor's name once
        _used.append(f"{event} {arguments[:2]}")


def _watch_processes() -> None:
    """Note processes of multiprocessing, which have no audit event."""
    start = _posixsubprocess.fork_exec

    def fork_exec(*arguments: Any) -> int:
        _note("os.fork", ())
        return start(*arguments)

    _posixsubprocess.fork_exec = fork_exec


sys.addaudithook(_note)
_watch_processes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _used
    # Threads of clusters and servers that tests of other tiers have used may still connect.
    is_alone = set(item.config.getoption("tier")) <= {"unit"}
    _used = [] if is_alone and tier_of(item) == "unit" else None
    try:
        return (yield)
    finally:
        _used = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if _used:
        pytest.fail(f"this test needs a marker of another tier than unit: it used {_listed(_used)}", pytrace=False)
    return result


def _listed(events: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(events))[:300]
