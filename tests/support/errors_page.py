"""The page of errors, ``docs/errors.md``: each class with a description, an example and a remedy.

``python -m tests.support.errors_page`` writes the page. A test checks that it is up to date.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import tempfile
from typing import Any, NamedTuple

from tests.support import ROOT
from zarrasync import errors

PAGE = ROOT / "docs" / "errors.md"
_HEAD = """# Errors

<!-- Written by `python -m tests.support.errors_page`. Do not edit. -->

All errors of zarrasync are subclasses of `zarrasync.errors.ZarrError`. Most are also subclasses of a built-in error, so that
`except KeyError` or `except OSError` catches them as well. The message of an error states what failed, where, and how to
fix it. The fields of an error contain the values in its message.

The traceback of a synchronous call leaves out most frames of zarrasync. To see all of them, set `ZARRASYNC_DEBUG_ERRORS=1`
in the environment, or use `with zarrasync.config.set(debug_errors=True):`.

Wrong arguments raise Python's own `TypeError` and `ValueError`.

The examples on this page have run after these lines:

```pycon
>>> import asyncio
>>> from pathlib import Path
>>> import zarrasync as za
>>> from zarrasync import errors, stores, sync
```
"""


class Example(NamedTuple):
    """An example that raises an error.

    Attributes:
        lines: Statements. The last one raises the error.
        remedy: What users can do.
    """

    lines: str
    remedy: str


EXAMPLES = {
    "NodeNotFoundError": Example(
        """
group = sync.create_hierarchy("x.zarr", {"lat": {"shape": 3, "dtype": "f8"}, "t2m": {"shape": 3, "dtype": "f4"}})
sync.open("x.zarr", path="t2")
""",
        "Check the path and the spelling. If the store is on a server, check the URL and `storage_options`.",
    ),
    "NodeExistsError": Example(
        """
array = sync.create_array("x.zarr", shape=3, dtype="i4")
sync.create_array("x.zarr", shape=4, dtype="i4")
""",
        'Use another path, open the existing node with `mode="a"`, or replace it with `overwrite=True`.',
    ),
    "NodeTypeError": Example(
        """
array = sync.create_array("x.zarr", shape=3, dtype="i4")
sync.open_group("x.zarr")
""",
        "Open the node with the function for its kind, or with `open`, which opens both.",
    ),
    "MetadataError": Example(
        """
store = {"zarr.json": b'{"zarr_format": 3, "node_type": "group", "attributes": 5}'}
sync.open(store)
""",
        "Correct the document, or create the node again. `zarrasync validate` lists all problems of a store.",
    ),
    "UnknownAdapterError": Example(
        """
sync.open("data.n5|n5:path")
""",
        "Correct the name of the protocol or the adapter, or install a package that provides it. [Stores](guides/stores.md#url-pipelines) "
        "lists the built-in ones.",
    ),
    "UnknownCodecError": Example(
        """
group = sync.create_group({})
array = group.create_array("a", shape=3, dtype="i4", compressors="zstd")
array = group.create_array("b", shape=3, dtype="i4", compressors="zstd")
group.store.values["b/zarr.json"] = group.store.values["b/zarr.json"].replace(b"zstd", b"acme.squeeze")
array = sync.open_array(group.store, path="a")
sync.open_array(group.store, path="b")
""",
        "Correct the name, install the package with the codec, or register the codec with `register_codec`. The other members of "
        "the group can be opened. `members()` and `xarray.open_dataset` omit the array with a warning, and `tree()` marks it.",
    ),
    "UnsupportedByFormat": Example(
        """
sync.create_array({}, shape=8, dtype="i4", chunks=2, shards=4, zarr_format=2)
""",
        "Leave out the feature, or use Zarr format 3.",
    ),
    "InvalidKeyError": Example(
        """
group = sync.create_group({})
group.create_group("a/../b")
""",
        "Use names without `..` and without reserved words.",
    ),
    "CodecError": Example(
        """
store = {}
array = sync.create_array(store, data=[1, 2, 3], compressors="gzip")
store["c/0"] = b"damaged"
array[:]
""",
        "The stored chunk is damaged. Restore it from a copy, or write its values again.",
    ),
    "ChecksumError": Example(
        """
store = {}
array = sync.create_array(store, data=[1, 2, 3], compressors="crc32c")
store["c/0"] = bytes(len(store["c/0"]))
array[:]
""",
        "The stored chunk is damaged. Restore it from a copy, or write its values again.",
    ),
    "EncodingError": Example(
        """
import xarray
from zarrasync.integrations.xarray import write_dataset
wind = xarray.Dataset({"u": ("x", [1.0, 500.0])})
write_dataset(wind, {}, encoding={"u": {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32767}})
""",
        "Choose a data type, `scale_factor`, and `_FillValue` that can represent all values. `lossy='allow'` stores the values anyway.",
    ),
    "SelectionError": Example(
        """
array = sync.create_array({}, shape=(4, 4), dtype="i4")
array[100]
""",
        "Use indices within the shape of the array.",
    ),
    "LabelError": Example(
        """
group = sync.create_group({})
lat = group.create_array("lat", data=[60.0, 50.0, 40.0], dimension_names=["lat"])
group.sel(lat=47.4)
""",
        "Select a label that exists, or the nearest one, with a `tolerance` if it must not be far away.",
    ),
    "ShapeError": Example(
        """
array = sync.create_array({}, shape=(4, 4), dtype="i4")
array[0] = [1, 2, 3]
""",
        "Pass values that broadcast to the shape of the selection.",
    ),
    "SourceFilesError": Example(
        """
open("empty.nc", "w").close()
sync.ingest_files("empty.nc", {}, concat="time")
""",
        'Fetch or repair the files, or leave them out with ``on_bad_file="skip"``.',
    ),
    "MissingChunkError": Example(
        """
array = sync.create_array({}, shape=4, dtype="i4", chunks=2)
array.view[:].read(missing="error")
""",
        'Write the chunks, or read their fill value with `missing="fill"`.',
    ),
    "StoreError": Example(
        """
array = sync.create_array("x.zarr", shape=4, dtype="i4", chunks=2)
Path("x.zarr/c").mkdir()
Path("x.zarr/c/0").symlink_to("0")  # a link to itself
array[:]
""",
        "The message contains the reason that the file system or the service gave. Temporary failures of a service are "
        "retried first; `config.retries` sets how often.",
    ),
    "ReadOnlyError": Example(
        """
array = sync.create_array("x.zarr", shape=4, dtype="i4")
sync.open_array("x.zarr")[:] = 1
""",
        'Open the node with `mode="r+"`, and check that the store can be written to.',
    ),
    "UnsupportedOperation": Example(
        """
array = sync.create_array(source := {}, shape=3, dtype="i4")
sync.plan_copy(source, {}).to_json()
""",
        "Use a store that supports the operation. Web servers, for example, can neither list keys nor write.",
    ),
    "ConditionsUnsupported": Example(
        """
store = stores.ObjectStore.from_url("s3://bucket/x.zarr", {"key": "name", "secret": "value"})
store.conditional = False  # as after a service has rejected a conditional write
asyncio.run(store.put("key", b"1", if_version=stores.ABSENT))
""",
        'Let one process write at a time, with `unaligned="allow"`, or write whole chunks.',
    ),
    "WriteConflictError": Example(
        """
store = stores.MemoryStore({"key": b"1"})
asyncio.run(store.put("key", b"2", if_version=stores.ABSENT))
""",
        "Read the value again and repeat the change. Arrays and groups do this themselves until `config.total_timeout`.",
    ),
}


def classes() -> list[type[errors.ZarrError]]:
    """Return all public error classes except for the base class, in the order of their definition."""
    public = (getattr(errors, name) for name in errors.__all__ if name not in ("Problem", "ZarrError"))
    return sorted(public, key=lambda cls: inspect.getsourcelines(cls)[1])


def run_example(cls: type[errors.ZarrError]) -> str:
    """Return the message of an error class's example.

    Raises:
        AssertionError: If the example raises no error.
    """
    names: dict[str, Any] = {}
    head = (
        "import asyncio\nfrom pathlib import Path\nimport zarrasync as za\nfrom zarrasync import errors, stores, sync\n"
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            exec(head + EXAMPLES[cls.__name__].lines, names)
        except errors.ZarrError as error:
            if type(error) is not cls:
                raise
            return str(error).replace(os.path.realpath(folder), "/data").replace(folder, "/data")
    raise AssertionError(f"the example of {cls.__name__} raised nothing")


def render() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for cls in classes():
        example = EXAMPLES[cls.__name__]
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        summary, _, fields = inspect.cleandoc(cls.__doc__ or "").replace("``", "`").partition("\n\nAttributes:\n")
        rows = re.sub(r"\n\s{8}", " ", fields).splitlines()
        table = "".join(f"- `{name.strip()}`: {text}\n" for name, _, text in (row.partition(": ") for row in rows))
        code = "\n".join(f">>> {line}" for line in example.lines.strip().splitlines())
        parts.append(
            f"\n## {cls.__name__}\n\n{summary} Base classes: {bases}.\n\n"
            f"{f'Fields:{chr(10)}{chr(10)}{table}{chr(10)}' if table else ''}"
            f"```pycon\n{code}\nzarrasync.errors.{cls.__name__}: {run_example(cls)}\n```\n\n{example.remedy}\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
