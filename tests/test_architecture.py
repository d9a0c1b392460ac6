"""The structure of the code: import order, format independence, file sizes and the public API."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import zarrasync as za
from tests.support import ROOT
from zarrasync import sync

PACKAGE = Path(za.__file__).parent

# From the ground up: a module imports only from its own package and from earlier ones.
ORDER = [
    "errors",
    "_util",
    "_kernel",
    "config",
    "_concurrency",
    "model",
    "indexing",
    "codecs",
    "metadata",
    "formats",
    "stores",
    "testing",
    "transfer",
    "display",
    "nodes",
    "bulk",
    "__init__",
    "_sync_base",
    "sync",
    "integrations",
    "server",
    "cli",
    "__main__",
]
# The same inside of ``bulk.files``.
FILES_ORDER = ["options", "sources", "parameters", "records", "planning", "running", "job", "ingestion"]
WITHOUT_IO = {"model", "indexing", "codecs", "metadata"}


@cache
def modules() -> dict[str, Path]:
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package(module: str) -> str:
    return module.partition(".")[0]


def imports(path: Path) -> set[str]:
    """Return the modules of zarrasync that a module imports, also in functions and for type checkers."""
    targets = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zarrasync"):
            inner = node.module.removeprefix("zarrasync").lstrip(".")
            targets |= {inner} if inner else {a.name if a.name in ORDER else "__init__" for a in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if package(alias.name) == "zarrasync"]
            targets |= {name.removeprefix("zarrasync").lstrip(".") or "__init__" for name in names}
    return targets


def test_every_module_has_a_package_in_the_order():
    assert {package(name) for name in modules()} == set(ORDER)


def test_imports_go_down_only():
    upward = {
        f"{name} -> {package(target)}"
        for name, path in modules().items()
        for target in imports(path)
        if ORDER.index(package(target)) > ORDER.index(package(name))
    }
    assert sorted(upward) == []


def test_imports_of_jobs_with_files_go_down_only():
    home = "bulk.files."
    inner = {name: package(name.removeprefix(home)) for name in modules() if name.startswith(home)}
    places = {name: FILES_ORDER.index(part) for name, part in inner.items() if part != "__init__"}
    assert set(places.values()) == set(range(len(FILES_ORDER)))
    upward = {
        f"{name} -> {target}"
        for name, place in places.items()
        for target in imported_modules(modules()[name])
        if places.get(target, 0) > place
    }
    assert sorted(upward) == []


def users_of(pattern: str, *packages: str) -> set[str]:
    """Return the modules of some packages whose text matches a pattern."""
    return {
        name for name, path in modules().items() if name.startswith(packages) and re.search(pattern, path.read_text())
    }


# What only the engine of jobs does, by the names that Python code for it contains, and the modules that may contain them.
OF_THE_ENGINE: dict[str, tuple[str, dict[str, str]]] = {
    "starts processes": (
        (
            r"multiprocessing|subprocess|Popen|create_subprocess_\w+|os\.(fork|forkpty|posix_spawnp?|spawn\w+|exec\w+|system)"
            r"|\w*PoolExecutor|Broken(Executor|ProcessPool)|(import )?concurrent\.futures|get_context|joblib|loky"
        ),
        {"bulk.jobs.executors": "runs calls elsewhere", "bulk.jobs.workers": "notices processes that ended"},
    ),
    "starts threads": (
        (
            r"_thread|Thread|Timer|ThreadPool|start_thread\(\)|start_new_thread|to_thread|run_in_executor|executor\(\)"
            r"|ThreadPoolExecutor"
        ),
        {
            "bulk.jobs.executors": "runs functions like map",
            "bulk.files.sources.identify": "looks at many files at a time",
        },
    ),
    "repeats or waits": (
        r"\w*Backoff|backoff|sleep|sleep_blocking|retry|tenacity|repeated in a loop",
        {
            "bulk.jobs.workers": "repeats calls",
            "bulk.jobs.claim": "waits for other jobs",
            "bulk.jobs.claimed_work": "waits for earlier stages",
            "bulk.jobs.claim_folder": "waits for tasks",
            "bulk.files.job": "leaves out files that cannot be read",
            "bulk.files.records.journal": "changes one document with others",
            "bulk.files.running.moved_rows": "waits for readers",
            "bulk.reports": "counts repeated requests",
            "integrations.xarray.rows": "waits for other writers",
        },
    ),
    "keeps a journal": (
        r"JOB_\w+|if_version=|fsync|mkstemp|mkdtemp|\w*Temporary\w+|sqlite3|shelve|dump|write_text|write_bytes|memmap",
        {
            "bulk.jobs.claim_folder": "the claim, the marks of tasks and the record of a publication",
            "bulk.jobs.plan_location": "the document of a plan",
            "bulk.files.running.tasks": "the folder of the claim",
            "bulk.files.records.journal": "the journal of ingested files",
            "bulk.files.sources.readers": "local copies of files",
            "bulk.scratch_folders": "intermediate arrays",
            "integrations.zarr.store": "a store of another library",
            "integrations.monitoring": "metrics",
        },
    ),
}


def words_of(tree: ast.AST) -> set[str]:
    """Return the names that a module uses: plain, of attributes (also called and of modules), of imports and arguments."""
    words = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.keyword(arg=str(name)):
                words |= {name, f"{name}="} if isinstance(node, ast.keyword) else {name}
            case ast.Attribute(attr=name):
                words |= {name, ast.unparse(node)}
            case ast.ImportFrom(module=module):
                words |= {*(module or "").split("."), *(alias.name for alias in node.names)}
                words |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Import():
                words |= {part for alias in node.names for part in (f"import {alias.name}", *alias.name.split("."))}
            case ast.Call(func=ast.Attribute(attr=name)):
                words.add(f"{name}()")
            case ast.While(test=ast.Constant()) | ast.For(iter=ast.Call(func=ast.Name(id="range"))) if _repeats(node):
                words.add("repeated in a loop")
    return words


def _repeats(loop: ast.While | ast.For) -> bool:
    """Return whether an error in a loop leads to the next round."""
    handlers = (node for node in ast.walk(loop) if isinstance(node, ast.ExceptHandler))
    return any(isinstance(handler.body[-1], ast.Continue | ast.Pass) for handler in handlers)


def users_among(pattern: str, trees: dict[str, ast.Module]) -> set[str]:
    return {name for name, tree in trees.items() if any(re.fullmatch(pattern, word) for word in words_of(tree))}


@pytest.mark.parametrize("what", OF_THE_ENGINE)
def test_front_ends_have_no_jobs_of_their_own(what: str):
    """Threads, processes, repetitions and journals are those of the engine, so that all jobs behave in one way."""
    trees = {name: tree_of(path) for name, path in modules().items() if package(name) in ("bulk", "integrations")}
    pattern, allowed = OF_THE_ENGINE[what]
    assert users_among(pattern, trees) == set(allowed)


PLANTED = {
    "starts processes": [
        "import subprocess",
        "from concurrent.futures import ProcessPoolExecutor as Pool",
        "import concurrent.futures as futures",
        "from multiprocessing.pool import Pool",
        "import os\nif os.fork(): pass",
        "async def f(): await asyncio.create_subprocess_exec('ls')",
    ],
    "starts threads": [
        "import threading\nthreading.Thread(target=print).start()",
        "from threading import Timer",
        "async def f(): await asyncio.to_thread(print)",
        "async def f(): asyncio.get_running_loop().run_in_executor(None, print)",
        "clock.current().start_thread('own', print)",
        "pool = clock.current().executor('own', 4)",
        "from concurrent.futures import ThreadPoolExecutor",
    ],
    "repeats or waits": [
        "import time\ntime.sleep(1)",
        "async def f(): await clock.current().sleep(1)",
        "for _ in range(3):\n    try:\n        f()\n    except OSError:\n        pass",
        "while True:\n    try:\n        f()\n        break\n    except OSError:\n        continue",
        "from zarrasync._concurrency.backoff import ConflictBackoff",
    ],
    "keeps a journal": [
        "async def f(): await store.put('journal', b'', if_version=1)",
        "from pathlib import Path\nPath('journal').write_text('1')",
        "import json\njson.dump(done, file)",
        "from zarrasync.nodes.erase import JOB_TASK",
    ],
}


@pytest.mark.parametrize(("what", "code"), [(what, code) for what, codes in PLANTED.items() for code in codes])
def test_jobs_of_their_own_are_found(what: str, code: str):
    assert users_among(OF_THE_ENGINE[what][0], {"planted": ast.parse(code)}) == {"planted"}


def test_the_engine_imports_no_front_end():
    targets = {target for name in modules() if name.startswith("bulk.jobs.") for target in imports(modules()[name])}
    above = {target for target in targets if target.startswith("bulk.") and not target.startswith("bulk.jobs")}
    assert above == {"bulk.checksum", "bulk.reports"}


def test_processes_of_other_applications():
    """Those of a server do no jobs."""
    trees = {name: tree_of(path) for name, path in modules().items() if package(name) in ("cli", "server")}
    assert users_among(OF_THE_ENGINE["starts processes"][0], trees) == {"server.running"}


def test_there_is_one_lease():
    """No other module renews what it holds, or decides whether another process has ended."""
    users = users_of(r"is_process_gone|process_name\(", "nodes", "bulk", "integrations", "server", "cli")
    assert users == {"bulk.scratch_folders"}  # of this machine
    assert users_of(r"[( ]Lease\)", "nodes", "bulk", "integrations", "stores") == {
        "stores.leases",
        "bulk.jobs.claim",
        "bulk.jobs.fencing",
        "integrations.xarray.claims",
    }


def imported_modules(path: Path) -> set[str]:
    """The modules themselves: ``from zarrasync.display import html`` imports display.html, other names display.__init__."""
    known, targets = modules(), set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zarrasync":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [f"{alias.name}.__init__" for alias in node.names if package(alias.name) == "zarrasync"]
        else:
            continue
        for name in names:
            inner = name.removeprefix("zarrasync.")
            home = inner.rpartition(".")[0]
            options = (inner, f"{inner}.__init__", home, f"{home}.__init__" if home else "__init__")
            targets.add(next(option for option in options if option in known))
    return targets


def test_no_modules_import_each_other():
    """Not in circles of any length, neither in functions nor for type checkers. A package stands for its __init__."""
    graph = {name: imported_modules(path) - {name} for name, path in modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_model_does_no_io():
    for name, path in modules().items():
        if package(name) in WITHOUT_IO:
            text = path.read_text()
            assert not re.search(r"^\s*(import asyncio|from asyncio|import os$)", text, re.MULTILINE), name
            coroutines = re.findall(r"^\s*async def (\w+)", text, re.MULTILINE)
            assert coroutines == (["run_search"] if name == "codecs.byte_ranges" else []), name


def store_classes() -> list[ast.ClassDef]:
    """Return the classes of stores, except those for zarr-python, whose base has the same name."""
    paths = [path for name, path in modules().items() if package(name) != "integrations"]
    classes = [node for path in paths for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    names: set[str] = set()
    found = {"Store"}
    while found != names:
        names = found
        found = names | {node.name for node in classes if names & {ast.unparse(base) for base in node.bases}}
    return [node for node in classes if node.name in names]


def attributes_set_by(store: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class sets: in its body, on ``self`` and with ``vars(self).update``."""
    for node in ast.walk(store):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store(), attr=name):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="vars")), attr="update"), keywords=given):
                yield from (keyword.arg for keyword in given if keyword.arg)
    for statement in store.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def test_stores_set_only_attributes_that_are_read():
    """A flag with a former name, or a misspelt one, would have no effect."""
    nodes = [node for path in modules().values() for node in ast.walk(tree_of(path))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    classes = store_classes()
    assert {"LocalStore", "ZipStore", "_BranchStore"} <= {store.name for store in classes}
    unread = {f"{store.name}.{name}" for store in classes for name in attributes_set_by(store) if name not in read}
    assert unread == set()


def test_no_format_is_known_outside_its_home():
    """Only ``formats``, and code that handles names of formats from users, contains document keys or branches on a format."""
    literal = re.compile(r"zarr\.json|\.zarray|\.zgroup|\.zattrs|\.zmetadata|node_type|[\"']meta/|dimension_separator")
    branch = re.compile(r"zarr_format\s*(==|!=|in\b|<|>)")
    for name, path in modules().items():
        if name.startswith(("formats", "metadata.format", "cli")) or name == "sync":
            continue
        tree = tree_of(path)
        docstrings = [_docstring(node) for node in ast.walk(tree)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                assert not literal.search(node.value), f"{name}:{node.lineno}: {node.value!r}"
            if isinstance(node, ast.Compare):
                assert not branch.search(ast.unparse(node)), f"{name}:{node.lineno}: {ast.unparse(node)}"


def _docstring(node: ast.AST) -> ast.Constant | None:
    match node:
        case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                    return text
    return None


def lines_of_code(path: Path) -> int:
    """Return the number of lines without docstrings, which contain examples."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = [
        node.body[0]
        for node in ast.walk(tree_of(path))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    ]
    return len(path.read_text().splitlines()) - sum((string.end_lineno or 0) - string.lineno + 1 for string in strings)


def test_files_stay_small():
    files = {name: path for name, path in modules().items() if name != "sync"}
    tests = {str(p.relative_to(ROOT)): p for p in (ROOT / "tests").rglob("*.py")}
    lengths = {name: lines_of_code(path) for name, path in (files | tests).items()}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def replaced_names(node: ast.AST) -> list[str]:
    """Return the names of attributes that a statement or call of a test sets on modules, classes or functions."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [] if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else [node.attr]
    if not isinstance(node, ast.Call):
        return []
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called not in ("setattr", "object", "patch"):  # of monkeypatch, mock.patch and builtins
        return []
    texts = [item.value for item in node.args[:2] if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [text.rpartition(".")[2] for text in texts[:1]]


def test_no_test_replaces_a_constant():
    """A limit that a test needs to change is a parameter. Other tests use real sizes, or set the clock ahead."""
    replaced = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"  # type: ignore[attr-defined]
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(tree_of(path))
        for name in replaced_names(node)
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]+|__defaults__|__kwdefaults__", name)
    ]
    assert replaced == []


@pytest.mark.processes
def test_the_facade_is_up_to_date():
    pytest.importorskip("ruff")
    done = subprocess.run(
        [sys.executable, "-m", "zarrasync._util.generate_sync", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def names(thing: type) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_both_apis_have_the_same_names_and_parameters():
    """``docs/names.md`` lists them; see ``tests/docs/test_names_page.py``."""
    import inspect

    classes = [name for name in za.__all__ if name.startswith("Async")]
    functions = [name for name in za.__all__ if inspect.isroutine(getattr(za, name))]
    assert sorted(sync.__all__) == sorted(["config", *(name.removeprefix("Async") for name in classes), *functions])
    for name in functions:
        ours, theirs = inspect.signature(getattr(sync, name)), inspect.signature(getattr(za, name))
        assert list(ours.parameters) == list(theirs.parameters)
    for name in classes:
        asynchronous, blocking = getattr(za, name), getattr(sync, name.removeprefix("Async"))
        extra = {"async_", "items", "values"}  # the mapping protocol, and the way back
        assert names(blocking) - extra == names(asynchronous) - extra
        for member in names(asynchronous):
            ours, theirs = getattr(blocking, member), getattr(asynchronous, member)
            if callable(theirs) and member not in ("keys", "get"):
                assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), member
                assert (ours.__doc__ or "").split(".")[0] == (theirs.__doc__ or "").split(".")[0].replace("await ", "")


def test_every_public_thing_is_documented():
    from zarrasync import codecs, errors, stores, testing

    assert len(stores.__all__) <= 22
    for module in (za, sync, codecs, errors, stores, testing):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and getattr(thing, "__module__", "").startswith("zarrasync"):
                assert thing.__doc__, f"{module.__name__}.{name}"


@pytest.mark.processes
def test_import_is_light():
    """Backends and codec libraries are imported at first use."""
    code = (
        "import sys, zarrasync, zarrasync.sync; "
        "print(' '.join(m for m in ('fsspec', 'aiohttp', 's3fs', 'numcodecs', 'isal', 'crc32c', 'tqdm', 'requests') "
        "if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.processes
def test_the_repository_has_no_other_files_at_the_top():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.partition("/")[0] for line in listed.splitlines()}
    folders = {"zarrasync", "tests", "benchmarks", "examples", "docs"}
    pages = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert {name for name in top if not name.startswith(".")} == folders | pages | {"pyproject.toml", "Makefile"}
