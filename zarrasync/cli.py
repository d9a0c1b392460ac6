"""The command ``zarrasync``: look at what is in a store, check it, convert it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import zarrasync
from zarrasync import sync
from zarrasync.errors import ZarrError

__all__ = ["main"]

_FORMATS: dict[str, int | str] = {"2": 2, "3": 3, "3-draft": "3-draft", "3-draft-2022": "3-draft-2022"}
_EXAMPLES = """examples:
  zarrasync info s3://bucket/era5.zarr -o anon=true
  zarrasync tree data.zarr
  zarrasync validate data.zarr --data
  zarrasync convert old.zarr new.zarr --to 3 --shards 1024,1024 --verify
  zarrasync ingest field.npy s3://bucket/field.zarr --chunks 512,512 --shards 4096,4096
  zarrasync ingest ocean.nc ocean.zarr
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zarrasync",
        description="Look at Zarr arrays and groups, check them, convert them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zarrasync {zarrasync.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.set_defaults(run=run)
        command.add_argument("url", help="a path or URL")
        command.add_argument("--path", default="", help="the node's path in the store")
        command.add_argument(
            "-o",
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a storage option, such as anon=true (may be repeated)",
        )
        return command

    add("info", "facts about an array or group", _info)
    add("tree", "the hierarchy below a group", _tree)
    check = add("validate", "look for what is wrong with an array or group and all below it", _validate)
    check.add_argument("--data", action="store_true", help="decode every chunk, too")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_convert(add("convert", "copy an array, or a group with all below it, into another format or layout", _convert))
    _add_ingest(add("ingest", "write an array file into an array or group; goes on if it was interrupted", _ingest))
    return parser


def _add_ingest(command: argparse.ArgumentParser) -> None:
    command.add_argument("dest", help="the path or URL to write")
    command.add_argument("--dest-path", default="", help="the node's path in the destination")
    command.add_argument("--dest-option", action="append", default=[], metavar="NAME=VALUE", help="its storage options")
    command.add_argument("--variable", action="append", default=[], help="only this one (may be repeated)")
    command.add_argument("--to", choices=_FORMATS, help="the Zarr format to write (default: 3)")
    command.add_argument("--chunks", type=_shape, default="auto", metavar="N,N,…", help="the shape of chunks")
    command.add_argument("--shards", type=_shape, default=None, metavar="N,N,…", help="the shape of shards")
    command.add_argument("--compressor", type=_codec, default="auto", help="a codec's name or JSON entry, or none")
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    command.add_argument("--verify", action="store_true", help="read everything again and compare")
    command.add_argument("--json", action="store_true", help="print the reports as JSON")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _add_convert(command: argparse.ArgumentParser) -> None:
    command.add_argument("dest", help="the path or URL to write")
    command.add_argument("--dest-path", default="", help="the node's path in the destination")
    command.add_argument("--dest-option", action="append", default=[], metavar="NAME=VALUE", help="its storage options")
    command.add_argument("--to", choices=_FORMATS, help="the Zarr format to write (default: that of the source)")
    command.add_argument("--chunks", type=_shape, default="keep", metavar="N,N,…", help="the shape of chunks")
    command.add_argument("--shards", type=_shape, default="keep", metavar="N,N,…", help="the shape of shards, or none")
    command.add_argument("--compressor", type=_codec, default="keep", help="a codec's name or JSON entry, or none")
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    command.add_argument("--resume", action="store_true", help="go on with a copy that was interrupted")
    command.add_argument("--verify", action="store_true", help="read everything again and compare")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _shape(text: str) -> Any:
    if text in ("keep", "auto", "none"):
        return None if text == "none" else text
    return tuple(int(part) for part in text.split(","))


def _codec(text: str) -> Any:
    return None if text == "none" else json.loads(text) if text.startswith("{") else text


def _options(given: Sequence[str]) -> dict[str, object] | None:
    options: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"a storage option is NAME=VALUE, found {item!r}")
        options[name] = {"true": True, "false": False}.get(value.lower(), value)
    return options or None


def _open(given: argparse.Namespace) -> sync.Array | sync.Group:
    return sync.open(given.url, path=given.path, storage_options=_options(given.option))


def _info(given: argparse.Namespace) -> int:
    print(_open(given).info)
    return 0


def _tree(given: argparse.Namespace) -> int:
    node = _open(given)
    print(node.tree() if isinstance(node, sync.Group) else f"{node.name} {node.shape} {node.dtype}")
    return 0


def _validate(given: argparse.Namespace) -> int:
    report = sync.validate(given.url, path=given.path, data=given.data, storage_options=_options(given.option))
    print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) if given.json else report)
    return 0 if report.ok else 1


def _convert(given: argparse.Namespace) -> int:
    report = sync.copy(
        given.url,
        given.dest,
        source_path=given.path,
        dest_path=given.dest_path,
        zarr_format=_FORMATS[given.to] if given.to else None,
        chunks=given.chunks,
        shards=given.shards,
        compressors=given.compressor,
        overwrite=given.overwrite,
        resume=given.resume,
        verify=given.verify,
        progress=sys.stderr.isatty() and not given.quiet,
        source_options=_options(given.option),
        dest_options=_options(given.dest_option),
    )
    print(report)
    return 0


def _ingest(given: argparse.Namespace) -> int:
    arrays, attributes = _arrays(given)
    single = set(arrays) == {""}
    if not single:
        with_mode: Any = "w" if given.overwrite else "a"
        group = sync.open_group(
            given.dest,
            path=given.dest_path,
            mode=with_mode,
            zarr_format=_FORMATS[given.to] if given.to else None,
            storage_options=_options(given.dest_option),
        )
        group.update_attributes(attributes)
    reports = {}
    for name, source in arrays.items():
        reports[name] = sync.ingest(
            source,
            given.dest,
            path="/".join(part for part in (given.dest_path, name) if part),
            mode="w" if given.overwrite and single else "a",
            verify=given.verify,
            progress=sys.stderr.isatty() and not given.quiet,
            storage_options=_options(given.dest_option),
            chunks=given.chunks,
            shards=given.shards,
            compressors=given.compressor,
            zarr_format=_FORMATS[given.to] if given.to else None,
        )
        if not given.json:
            print(f"{name}: {reports[name]}" if name else reports[name])
    if given.json:
        print(json.dumps({name: vars(report) for name, report in reports.items()}, indent=2))
    return 0


def _arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file holds, by name (one array alone has none), and its attributes."""
    import numpy as np

    found: dict[str, Any]
    attributes: dict[str, Any] = {}
    if given.url.endswith(".npy"):
        found = {"": np.load(given.url, mmap_mode="r")}
    elif given.url.endswith(".npz"):
        found = dict(np.load(given.url))
    else:
        found, attributes = _zarr_arrays(given) or _xarray_arrays(given)
    if given.variable:
        missing = [name for name in given.variable if name not in found]
        if missing:
            raise ValueError(f"{given.url} has no {missing[0]!r}; it has {', '.join(found) or 'one array alone'}")
        found = {name: found[name] for name in given.variable}
    return found, attributes


def _zarr_arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]] | None:
    try:
        node = _open(given)
    except ZarrError:
        if given.url.rstrip("/").endswith(".zarr"):
            raise
        return None
    if isinstance(node, sync.Array):
        return {"": node}, {}
    members = {name: member for name, member in node.members(max_depth=None) if isinstance(member, sync.Array)}
    return members, dict(node.attrs)


def _xarray_arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables of what xarray can open, as they are stored."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("files of other formats are read by xarray: pip install 'zarrasync[xarray]'") from error
    from zarrasync.integrations.xarray import stored_variables

    dataset = xarray.open_dataset(given.url, decode_cf=False, chunks=None)  # open until the process ends
    return stored_variables(dataset), dict(dataset.attrs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments; those of the process if none are given.

    Returns:
        The exit code: 0, or 1 after an error, which is printed in one line, and where ``validate`` finds one.
    """
    given = _parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except (ZarrError, OSError, ValueError, TypeError, ImportError) as error:
        print(f"zarrasync: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
