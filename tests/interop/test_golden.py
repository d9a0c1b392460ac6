"""Stores that other implementations wrote, and good and bad ones written from the specifications."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from zarrasync.errors import ZarrError
from zarrasync.stores import PrefixStore, ZipStore

pytestmark = pytest.mark.foreign

GOLDEN = os.environ.get("ZARRASYNC_GOLDEN", "")
if not GOLDEN:
    pytest.skip("ZARRASYNC_GOLDEN does not name a folder of golden stores", allow_module_level=True)

STORES = Path(GOLDEN)

# Invalid documents that zarrasync accepts, because real software wrote such ones and their meaning is certain: the fill
# value 0 of a bool, as in zarr_v3.from_zarrita…b1, a bare NaN token, as early releases of zarr-python 3 wrote it, and
# documents of format 2 without filters, which zarr-python reads as well.
READ_ANYWAY = {"spec_written/v2-filters-missing", "spec_written/v3-bool-fill-number", "spec_written/v3-json-bare-nan"}


def cases() -> Iterator[Any]:
    for row in json.loads((STORES / "MANIFEST.json").read_text()):
        if row["format"] == "zip":
            continue
        expected = row["expected"]
        nodes = expected.get("nodes") or {expected.get("node", "/"): expected}
        for path, node in nodes.items():
            if "#" not in path:
                yield pytest.param(row, path.strip("/"), node, id=f"{row['case']}:{path}")


def canonical(values: np.ndarray) -> str:
    """Return the checksum of an array's values as the manifest defines it."""
    if values.dtype.kind in "TO":
        plain = [
            {"b64": base64.b64encode(v).decode()} if isinstance(v, bytes) else v
            for v in values.astype(object).ravel().tolist()
        ]
        text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
    return hashlib.sha256(np.ascontiguousarray(values).astype(_little(values.dtype)).tobytes()).hexdigest()


def _little(dtype: np.dtype) -> np.dtype:
    if dtype.names:
        return np.dtype([(name, _little(dtype.fields[name][0])) for name in dtype.names])
    if dtype.subdtype:
        return np.dtype((_little(dtype.subdtype[0]), dtype.subdtype[1]))
    return dtype.newbyteorder("<")


@pytest.mark.parametrize(("row", "path", "node"), list(cases()))
async def test_golden(row: dict[str, Any], path: str, node: dict[str, Any]) -> None:
    where: Any = STORES / row["path"]
    where = where / row["prefix"] if row["store"] == "dir" else PrefixStore(ZipStore(where), row["prefix"])
    outcome = node["outcome"]
    if outcome == "reject" and row["case"] not in READ_ANYWAY:
        with pytest.raises(ZarrError):
            await read(where, path)
        return
    if outcome == "either":
        try:
            found, values = await read(where, path)
        except ZarrError:
            return
    else:
        found, values = await read(where, path, load=outcome != "metadata")
    if node["kind"] == "group":
        assert isinstance(found, za.AsyncGroup)
    elif values is not None and node.get("sha256") and not ("undefined_fill" in node and outcome == "either"):
        assert list(values.shape) == node["shape"]
        assert canonical(values) in (node["sha256"], node.get("sha256_other"))
    if node.get("attrs") is not None:
        attrs, wanted = json.loads(json.dumps(dict(found.attrs)), parse_constant=str), dict(node["attrs"])
        wanted = json.loads(json.dumps(wanted), parse_constant=str)  # NaN is NaN here
        if wanted.pop("__some_of__", None):  # the manifest lists some of the attributes
            attrs = {name: value for name, value in attrs.items() if name in wanted}
        assert attrs == wanted


@pytest.mark.parametrize(
    "row",
    [row for row in json.loads((STORES / "MANIFEST.json").read_text()) if row["format"] == "zip"],
    ids=lambda r: r["case"],
)
async def test_zip_archives(row: dict[str, Any]) -> None:
    with ZipStore(STORES / row["path"]) as store:
        for key, entry in row["expected"]["entries"].items():
            try:
                value = await store.get(key)
            except ZarrError:
                assert row["expected"]["outcome"] == "either"  # compression methods that Python does not support
                continue
            assert value is not None
            assert len(value) == entry["size"]
            assert entry.get("sha256") in (None, hashlib.sha256(value).hexdigest())


async def read(where: Any, path: str, *, load: bool = True) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = await za.open(where, path=path)
    values = await found[...].read() if load and isinstance(found, za.AsyncArray) else None
    return found, values
