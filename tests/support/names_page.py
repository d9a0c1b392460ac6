"""The page of public names, ``docs/names.md``: each with its signature and the first line of its description.

``python -m tests.support.names_page`` writes the page. A test checks that it is up to date, so that no name and no signature
changes unnoticed.
"""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import zarrasync as za
from tests.support import ROOT
from zarrasync import codecs, sync

PAGE = ROOT / "docs" / "names.md"
MODULES = (
    "zarrasync",
    "zarrasync.sync",
    "zarrasync.stores",
    "zarrasync.codecs",
    "zarrasync.config",
    "zarrasync.errors",
    "zarrasync.testing",
    "zarrasync.integrations.dask",
    "zarrasync.integrations.monitoring",
    "zarrasync.integrations.xarray",
    "zarrasync.integrations.zarr",
    "zarrasync.server",
    "zarrasync.server.asgi",
)
_HEAD = """# All names

<!-- Written by `python -m tests.support.names_page`. Do not edit. -->

The public names of each module with their parameters. The [reference](api.md) describes them. Classes show the members that their
public base classes do not have, and the synchronous ones those that the asynchronous ones do not have. A test compares this page with
the code, so that no signature changes unnoticed.
"""
_PROTOCOLS = (
    "__getitem__",
    "__setitem__",
    "__await__",
    "__iter__",
    "__aiter__",
    "__array__",
    "__enter__",
    "__aenter__",
)
_WIDTH = 110


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *(part for name in MODULES for part in _section(name))])


def _section(name: str) -> Iterator[str]:
    module = import_module(name)
    yield f"## {name}\n\n```text"
    for public in sorted(module.__all__, key=str.lower):
        value = getattr(module, public)
        yield from _entry(public, value)
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member, attribute in _members(value, module):
                yield from _entry(f"  .{member}", attribute)
    yield "```\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        head, description = name, _first_line(value)
    elif inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("zarrasync")):
        head, description = f"{name}{_signature(value)}", _first_line(value)
    elif inspect.ismodule(value):
        head, description = name, _first_line(value)
    else:
        head, description = name, ""
    indent = " " * (len(name) - len(name.lstrip()))
    yield from textwrap.wrap(
        head,
        _WIDTH,
        initial_indent="",
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    if description:
        yield textwrap.indent(textwrap.fill(description, _WIDTH - 8), f"{indent}    ")


def _members(class_: type, module: Any) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties of a class that no public base class, nor its asynchronous twin, has."""
    listed = [base for base in class_.__mro__[1:] if getattr(module, base.__name__, None) is base]
    if issubclass(class_, codecs.Codec) and listed:
        return  # codecs have no methods for users
    if module is sync:
        listed.append(getattr(za, f"Async{class_.__name__}"))
    for name in sorted({*dir(class_)}):
        if name.startswith("_") and name not in _PROTOCOLS:
            continue
        home = next(base for base in class_.__mro__ if name in vars(base))
        attribute = _plain(vars(home)[name])
        if not home.__module__.startswith("zarrasync") or not (
            isinstance(attribute, property) or inspect.isfunction(attribute)
        ):
            continue
        if any(_same(attribute, _plain(inspect.getattr_static(base, name, None))) for base in listed):
            continue
        yield name, attribute


def _plain(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, classmethod | staticmethod) else attribute


def _same(ours: Any, theirs: Any) -> bool:
    """Return whether users call two members in the same way."""
    if isinstance(ours, property) or isinstance(theirs, property):
        return isinstance(ours, property) and isinstance(theirs, property)
    return inspect.isfunction(theirs) and _signature(ours) == _signature(theirs)


def _signature(value: Any) -> str:
    """Return the parameters of a function or of a constructor, without types."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # some built-in types
        return ""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_Shown.of(parameter.default))
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default whose representation is the same in each process."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    @classmethod
    def of(cls, default: Any) -> Any:
        if default is inspect.Parameter.empty:
            return default
        text = default.name if isinstance(default, enum.Enum) else repr(default)
        return cls(re.sub(r"<(?:function|class) '?(?:[\w.]*\.)?(\w+).*>", r"\1", text))


def _first_line(value: Any) -> str:
    """Return the first line of the docstring of a name itself, not of one that it overrides."""
    return inspect.cleandoc(value.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    PAGE.write_text(page())
