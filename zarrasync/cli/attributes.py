"""The commands attrs get and attrs set."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

from zarrasync._concurrency.bridge import run
from zarrasync._util.advice import suggest
from zarrasync.cli.arguments import Commands, open_in_hierarchy, open_node
from zarrasync.cli.console import Console
from zarrasync.display.text import counted
from zarrasync.nodes.access import replace_attributes


def add(commands: Commands) -> None:
    """Add the commands."""
    group = commands.group("attrs", "print or change the attributes of an array or group")
    get = group(
        "get",
        "print the attributes as JSON, or the value of one",
        _get,
        examples=["attrs get data.zarr --path t2m", "attrs get data.zarr units --path t2m --raw"],
    )
    get.add_argument("key", nargs="?", help="the attribute to print; without it all are printed")
    get.add_argument("--raw", action="store_true", help="print a string without quotes")
    set_ = group(
        "set",
        "set or remove attributes with one write",
        _set,
        examples=[
            "attrs set data.zarr --path t2m units=K 'valid_range=[180, 330]' standard_name=air_temperature",
            "attrs set data.zarr --path t2m --string version=1.0 --delete comment",
            "attrs set data.zarr --file attributes.json",
        ],
    )
    set_.add_argument("items", nargs="*", metavar="KEY=VALUE", help="VALUE is JSON; other words are strings")
    set_.add_argument("--string", action="store_true", help="take all values as strings, also 1.0 and true")
    set_.add_argument("--delete", action="append", default=[], metavar="KEY", help="remove this one (may be repeated)")
    set_.add_argument("--file", metavar="FILE", help="set the members of this file's JSON object; - for standard input")


def _get(args: argparse.Namespace, console: Console) -> int:
    attributes = dict(open_node(args).attrs)
    if args.key is None:
        console.data(attributes)
        return 0
    if args.key not in attributes:
        _refuse_unknown(args, args.key, attributes)
    value = attributes[args.key]
    if args.raw and isinstance(value, str) and not console.as_json:
        console.text(value)
    else:
        console.data(value)
    return 0


def _set(args: argparse.Namespace, console: Console) -> int:
    new = _parse(args)
    both = sorted(new.keys() & set(args.delete))
    if both:
        raise ValueError(f"the attribute {both[0]!r} is both set and deleted; name it once")
    if not new and not args.delete:
        raise ValueError("nothing to change: pass KEY=VALUE, --file or --delete")
    node = open_in_hierarchy(args)
    if args.delete:
        remaining = dict(node.attrs)
        for key in args.delete:
            if remaining.pop(key, _ABSENT) is _ABSENT:
                _refuse_unknown(args, key, node.attrs)
        change = replace_attributes(node.async_, {**remaining, **new})
        run(change, blocking=node.store.blocking)
    else:
        node.update_attributes(new)
    if console.as_json:
        console.data(dict(node.attrs))
    else:
        done = [f"{counted(len(new), 'attribute')} set" if new else ""]
        done.append(f"{counted(len(args.delete), 'attribute')} removed" if args.delete else "")
        console.text(f"{node.name}: {', '.join(filter(None, done))}")
    return 0


_ABSENT = object()


def _refuse_unknown(args: argparse.Namespace, key: str, known: Mapping[str, Any]) -> Never:
    where = f"{args.url} at {args.path!r}" if args.path else args.url
    names = f"its attributes: {', '.join(known)}" if known else "it has no attributes"
    raise ValueError(f"{where} has no attribute {key!r}; {suggest(key, known, names)}")


def _parse(args: argparse.Namespace) -> dict[str, Any]:
    """Return the new attributes of the command line and of a file."""
    new: dict[str, Any] = {}
    if args.file is not None:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        try:
            members = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{args.file} is not JSON: {error}") from None
        if not isinstance(members, dict):
            raise ValueError(f"{args.file} contains a JSON {_kind(members)}; attributes are a JSON object")
        new.update(members)
    for item in args.items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError(f"an attribute must be KEY=VALUE, found {item!r}")
        new[key] = value if args.string else _value(key, value)
    return new


def _value(key: str, text: str) -> Any:
    """Return a value written as JSON, or a string if it does not look like JSON."""
    try:
        return json.loads(text, parse_constant=str)  # NaN and Infinity are not JSON
    except json.JSONDecodeError as error:
        if text[:1] in ("{", "[", '"'):
            raise ValueError(
                f"the value of {key!r} is not JSON: {error}. Quote it for the shell, or pass --string for a string"
            ) from None
        return text


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
