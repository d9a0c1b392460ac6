"""Documents of references in the format of kerchunk: their location, reading them, and checking their content.

Version 0 maps keys to references. Version 1 has them in a member, and templates for the beginnings of URLs in another one. A
reference is the value itself (a string), or a list of a URL, and of offset and size for a part of that file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrasync import config
from zarrasync._util import json
from zarrasync._util.memory import check_budget
from zarrasync._util.redact import redact
from zarrasync.errors import MetadataError, Problem, StoreError
from zarrasync.stores.fsspec import http
from zarrasync.stores.local_files import read_regular_file

_TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_LARGEST = (1 << 63) - 1


def bottom_of(document: str, protocol: str | None, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the URL, the protocol and the options of what a document comes from, behind caches and archives.

    Args:
        document: The URL of the document, which may be a chain.
        protocol: Its protocol; ``None`` for the one in the URL.
        options: Options of its filesystem. They contain the options of filesystems behind it.

    Raises:
        StoreError: If the document is itself behind references, which could lead anywhere.
    """
    from fsspec.core import split_protocol

    parts = document.split("::")
    names = [protocol, *(split_protocol(part)[0] or part for part in parts)]
    if "reference" in names:
        raise StoreError(f"{redact(document)!r} cannot be opened: a document of references is behind other references")
    if len(parts) > 1:
        own = split_protocol(parts[-1])[0] or "file"
        return parts[-1], own, options.setdefault(own, {})
    if "fo" in options or "target_protocol" in options:
        inner = options.get("fo", document)
        if isinstance(inner, str):
            return bottom_of(inner, options.get("target_protocol"), options.setdefault("target_options", {}))
    return document, protocol or split_protocol(document)[0] or "file", options


def read(document: str, protocol: str | None, options: Mapping[str, Any], cache_size: int) -> Any:
    """Return a parsed document, or a mapping that reads a directory of Parquet files when needed.

    Args:
        document: Its URL.
        protocol: Its protocol; ``None`` for the one in the URL.
        options: Options of its filesystem.
        cache_size: The number of Parquet files to keep in memory.

    Raises:
        MetadataError: If it is not a JSON object.
        BudgetExceeded: If it is larger than ``max_document_bytes``.
        OSError: If it cannot be read.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.reference import LazyReferenceMapper

    fs, path = url_to_fs(document, **options, **({} if protocol is None else {"protocol": protocol}))
    if ".json" not in path and (document.endswith(("parq", "parquet", "/")) or fs.isdir(path)):
        return LazyReferenceMapper(path, fs=fs, cache_size=cache_size)
    limit = config.get().max_document_bytes
    data: Any
    if isinstance(fs, LocalFileSystem):
        data = read_regular_file(path, limit)
    elif http.is_supported(fs):
        from fsspec.asyn import sync

        with http.limited(limit):
            data = sync(fs.loop, http.cat_file, fs, path)
    else:
        data = fs.cat_file(path, start=0, end=limit + 1)
    check_budget(limit, len(data), at_least=True, what="document")
    return json.load(bytes(data), redact(document))


def expanded(document: Mapping[str, Any], name: str, templates: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of version 1 without templates, whose references are well-formed.

    Args:
        document: The parsed document.
        name: Its URL, for messages.
        templates: Templates that replace the ones in the document.

    Raises:
        MetadataError: If it is malformed.
    """
    version = document.get("version")
    if version is None:
        references, own = document, {}
    elif version == 1:
        references, own = document.get("refs", {}), document.get("templates", {})
        if document.get("gen"):
            raise malformed(name, "$.gen", "references made by rules are supported with simple_templates=False only")
    else:
        raise malformed(name, "$.version", f"expected 1, or none, found {version!r}")
    if not isinstance(references, Mapping):
        raise malformed(name, "$.refs", f"expected an object, found {type(references).__name__}")
    if not isinstance(own, Mapping):
        raise malformed(name, "$.templates", f"expected an object, found {type(own).__name__}")
    values = {**own, **templates}
    for key, value in values.items():
        if not isinstance(value, str) or "{{" in value:
            raise malformed(name, f"$.templates.{key}", "expected a string; others need simple_templates=False")
    plain, size, limit = dict[str, Any](), 0, config.get().max_document_bytes
    for key, reference in references.items():
        if problem := problem_of(reference):
            raise malformed(name, f"$.refs.{key}", problem)
        plain[key] = reference
        if isinstance(reference, list | tuple) and "{{" in (reference[0] or ""):
            if unknown := set(_TEMPLATE.findall(reference[0])) - values.keys():
                raise malformed(name, f"$.refs.{key}", f"the template {min(unknown)!r} is not defined")
            url = _TEMPLATE.sub(lambda match: values[match[1]], reference[0])
            size += len(url)
            if size > limit:
                raise malformed(
                    name, f"$.refs.{key}", f"URLs have more than {limit:,} bytes; raise config.max_document_bytes"
                )
            plain[key] = [url, *reference[1:]]
    return {"version": 1, "refs": plain}


def problem_of(reference: Any) -> str:
    """Return the problem with a reference; empty if it is well-formed."""
    if isinstance(reference, str | bytes | Mapping) or hasattr(reference, "to_bytes"):
        return "" if not isinstance(reference, int) else f"expected a string or a list, found {reference!r}"
    if not isinstance(reference, list | tuple) or len(reference) not in (1, 3):
        return f"expected a string, or a list of a URL, offset and size, found {str(reference)[:80]}"
    url, *numbers = reference
    if not isinstance(url, str | None):
        return f"expected a URL, found {str(url)[:80]}"
    if not all(map(_is_size, numbers)) or sum(map(int, numbers)) > _LARGEST:
        return f"expected an offset and a size of at least 0, found {str(numbers)[:80]}"
    return ""


def _is_size(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 0


def malformed(name: str, location: str, message: str) -> MetadataError:
    """Return the error for a malformed document."""
    return MetadataError.from_problems([Problem(name, location, message)])
