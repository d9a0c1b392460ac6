"""The examples in docstrings run, and every public coroutine function and method has one."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io

import numpy as np
import pytest

import zarrasync as za
from zarrasync import sync

NAMES = {"za": za, "sync": sync, "np": np}
CLASSES = [za.AsyncArray, za.AsyncDecodedArray, za.AsyncGroup, za.AsyncSelection]
FUNCTIONS = {name: member for name in za.__all__ if inspect.iscoroutinefunction(member := getattr(za, name))}
METHODS = {
    f"{cls.__name__}.{name}": member
    for cls in CLASSES
    for name, member in inspect.getmembers(cls)
    if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
}
PROPERTIES = {
    f"{cls.__name__}.{name}": member
    for cls in CLASSES
    for name, member in inspect.getmembers(cls)
    if not name.startswith("_") and ">>>" in (member.__doc__ or "") and not inspect.iscoroutinefunction(member)
}
CLASS_EXAMPLES = {cls.__name__: cls for cls in CLASSES}


async def run(example, names):
    """Run an example as the interactive ``python -m asyncio`` does, and return what it prints."""
    code = compile(example.source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        result = eval(code, names)
        if inspect.iscoroutine(result):
            await result
    return output.getvalue()


@pytest.mark.parametrize("name", [*CLASS_EXAMPLES, *FUNCTIONS, *METHODS, *PROPERTIES])
async def test_asynchronous_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documented = {**CLASS_EXAMPLES, **FUNCTIONS, **METHODS, **PROPERTIES}[name]
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")
    assert examples, f"{name} has no example"
    names = dict(NAMES)
    for example in examples:
        printed = await run(example, names)
        assert doctest.OutputChecker().check_output(example.want, printed, 0), f"{example.source}prints {printed}"


@pytest.mark.parametrize(
    "module", ["zarrasync", "zarrasync.sync", "zarrasync._sync_base", "zarrasync.config", "zarrasync.codecs"]
)
def test_synchronous_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module), extraglobs=NAMES)
    assert result.attempted
    assert not result.failed
