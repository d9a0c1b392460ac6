"""fsspec's filesystem of references, which reaches nothing that its reader has not chosen, and its documents.

Documents have the format of kerchunk. Version 0 maps keys to references. Version 1 has them in a member, and templates for
the beginnings of URLs in another one. A reference is the value itself (a string), or a list of a URL, and of offset and size
for a part of that file.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from fsspec import get_filesystem_class
from fsspec.asyn import AsyncFileSystem, mirror_sync_methods, sync
from fsspec.core import split_protocol, url_to_fs
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem, ReferenceNotReachable

from zarrasync import config
from zarrasync._util import json
from zarrasync._util.memory import BudgetExceeded, check_budget, reason_of
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import MetadataError, Problem, StoreError, ZarrError
from zarrasync.stores.errors import message_of
from zarrasync.stores.fsspec import http
from zarrasync.stores.fsspec.identity import WEB
from zarrasync.stores.fsspec.targets import Targets, guarded_client
from zarrasync.stores.local import local_path
from zarrasync.stores.local_files import check_regular, read_regular_file

_IN_MEMORY = "the references"
"""What messages call references that the caller passes."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that malformed documents raise in fsspec."""


class References(ReferenceFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Byte ranges of other files, as a document describes them, under the rule of ``Targets``.

    Args:
        fo: The URL of the document, or its content, which may then refer to anything.
        target: The target of references without a URL.
        ref_storage_args: A former name of ``target_options``.
        target_protocol: The protocol of the document.
        target_options: Options of the filesystem of the document.
        remote_protocol: The protocol of targets without one.
        remote_options: Options of the filesystems of targets.
        fs: The filesystem of targets, or a mapping from protocols to filesystems or their options.
        template_overrides: Templates that replace the ones in the document.
        simple_templates: Whether templates are only replaced. Otherwise jinja renders them, for trusted documents.
        cache_size: The number of Parquet files to keep in memory, for documents in that format.
        allow_targets: URLs and local directories that the document may refer to, in addition to the rule.
        confined: Whether local files are read from the document's directory only.
        **options: Options of ``ReferenceFileSystem``.

    Attributes:
        targets: The rule.

    Raises:
        MetadataError: If the document is malformed.
        StoreError: If it is behind other references.
    """

    def __init__(
        self,
        fo: str | Mapping[str, Any],
        target: str | None = None,
        ref_storage_args: Mapping[str, Any] | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        remote_protocol: str | None = None,
        remote_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        template_overrides: Mapping[str, Any] | None = None,
        simple_templates: bool = True,
        *,
        cache_size: int = 128,
        allow_targets: Iterable[str] = (),
        confined: bool = False,
        **options: Any,
    ) -> None:
        self.targets = Targets.of("", "memory", "", allow_targets, name=_IN_MEMORY)
        document: Any = fo
        if isinstance(fo, str):
            document = self._read(fo, target_protocol, ref_storage_args or target_options, cache_size, allow_targets)
        if confined:
            self.targets = self.targets.confined()
        if isinstance(document, dict) and simple_templates:
            document, template_overrides = expanded(document, self.targets.name, template_overrides or {}), None
        try:
            super().__init__(
                document,
                target=target,
                fs={},
                template_overrides=template_overrides,
                simple_templates=simple_templates,
                **options,
            )
        except _MALFORMED as error:
            raise malformed(self.targets.name, "$", f"{type(error).__name__}: {error}") from error
        self._given = fs
        self._remote_protocol, self._remote_options = remote_protocol, dict(remote_options or {})
        self.fss = _Filesystems(self._make)

    def _read(
        self, fo: str, protocol: str | None, options: Mapping[str, Any] | None, cache_size: int, allowed: Iterable[str]
    ) -> Any:
        """Return the content of the document at a URL, from which the rule follows."""
        own = copy.deepcopy(dict(options or {}))
        url, bottom, bottom_options = bottom_of(fo, protocol, own)
        folder = ""
        if bottom in ("file", "local"):
            folder = os.path.realpath(os.path.dirname(os.path.abspath(local_path(url))))
        elif "://" not in url:
            url = f"{bottom}://{url}"
        self.targets = Targets.of(url, bottom, folder, allowed, name=redact(fo))
        if bottom in WEB:
            bottom_options.setdefault("get_client", guarded_client(self.targets, pins=True))
        try:
            return read(fo, protocol, own, cache_size)
        except (ZarrError, OSError, ImportError, TypeError):
            raise
        except Exception as error:
            reason = (
                reason_of(error)
                if isinstance(error, BudgetExceeded)
                else f"{type(error).__name__}: {message_of(error)}"
            )
            raise StoreError(f"{self.targets.name!r} cannot be opened: {reason}") from error

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> References:
        """Return a filesystem of the same references for an event loop."""
        return self._with(_loop=loop, asynchronous=True)

    def confined(self) -> References:
        """Return a filesystem of the same references that reads local files from the document's directory only."""
        return self._with(targets=self.targets.confined(), storage_options={**self.storage_options, "confined": True})

    def _with(self, **changes: Any) -> References:
        """Return a filesystem of the same references, without reading the document again."""
        other: References = object.__new__(type(self))
        # Blocking methods are attributes that belong to one object.
        kept = {name: value for name, value in vars(self).items() if not callable(value)}
        for name, value in (kept | changes).items():
            setattr(other, name, value)
        mirror_sync_methods(other)
        other.fss = _Filesystems(other._make)
        return other

    # -------------------------------------------------------------- targets

    def _cat_common(self, path: str, start: int | None = None, end: int | None = None) -> tuple[Any, Any, Any]:
        """Return the value of a key, or else its target and the byte range in it, to which the document may refer.

        Raises:
            FileNotFoundError: If the key has no reference.
            MetadataError: If the reference is malformed.
            StoreError: If the document may not refer to the target.
        """
        key = str(self._strip_protocol(path))
        name = self.targets.name
        try:
            reference = self.references[key]
        except KeyError:
            raise FileNotFoundError(path) from None
        except _MALFORMED as error:
            raise malformed(name, f"$.refs.{key}", f"{type(error).__name__}: {error}") from error
        if problem := problem_of(reference):
            raise malformed(name, f"$.refs.{key}", problem)
        try:
            found, first, last = super()._cat_common(path, start, end)
        except _MALFORMED as error:
            raise malformed(name, f"$.refs.{key}", f"{type(error).__name__}: {error}") from error
        if isinstance(found, bytes):
            return found, first, last
        if found is None:
            raise malformed(name, f"$.refs.{key}", "it has no URL, and no option target= has one")
        if found != self.target:
            self.targets.check(found, self._protocol_of(found), key)
        if self._protocol_of(found) in ("file", "local"):
            try:
                check_regular(os.stat(local_path(found)), local_path(found))
            except OSError as error:  # an absent target is not an absent chunk
                raise StoreError(
                    f"{name!r}: {key!r} refers to {found!r}, which cannot be read: {error}", key=key
                ) from error
        return found, first, last

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> Buffer:
        found, first, last = self._cat_common(path, start, end)
        if isinstance(found, bytes):
            return found[start:end]
        is_part = len(self.references[self._strip_protocol(path)]) == 3  # otherwise the size of the file is not known
        limit, stop = http.limit(), last
        if limit is not None and (first or 0) >= 0 and (last is None or last - (first or 0) > limit):
            stop = (first or 0) + limit + 1  # one byte more shows that the value is too large
        try:
            data: Buffer = await self.fss[split_protocol(found)[0]]._cat_file(found, start=first, end=stop)
        except Exception as error:
            raise ReferenceNotReachable(path, found) from error
        if is_part and stop == last and len(data) < last - first:
            raise StoreError(
                f"{self.targets.name!r}: {path!r} refers to bytes {first} to {last} of {redact(found)!r}, which ends "
                f"{last - first - len(data)} bytes before",
                key=path,
            )
        return data

    def _protocol_of(self, url: str) -> str:
        """Return the protocol of a target. As in fsspec, it is the one of the first target for those without one."""
        protocol = split_protocol(url)[0]
        if protocol is None and self._remote_protocol is None:
            if self._given is not None and not isinstance(self._given, Mapping):
                self._remote_protocol = _first(self._given.protocol)
            else:
                urls = (reference[0] for reference in self.references.values() if isinstance(reference, list | tuple))
                self._remote_protocol = split_protocol(next((url for url in urls if url), ""))[0] or "file"
        return protocol or self._remote_protocol or "file"

    def _make(self, protocol: str | None) -> Any:
        """Return the filesystem of targets with a protocol, which has been checked."""
        name = self._protocol_of("") if protocol is None else protocol
        if protocol is None and not isinstance(self._given, Mapping):
            return self.fss[name]
        given = self._given.get(protocol) if isinstance(self._given, Mapping) else self._given
        kind, arguments, options = get_filesystem_class(name), (), self._remote_options
        if isinstance(given, Mapping):
            options = dict(given)
        elif given is not None and name in ((given.protocol,) if isinstance(given.protocol, str) else given.protocol):
            if not given.async_impl:
                return AsyncFileSystemWrapper(given, asynchronous=self.asynchronous)
            kind, arguments, options = type(given), given.storage_args, dict(given.storage_options)
        if not issubclass(kind, AsyncFileSystem):
            return AsyncFileSystemWrapper(kind(*arguments, **options), asynchronous=self.asynchronous)
        options = {**options, "asynchronous": self.asynchronous, "skip_instance_cache": True}
        if self.asynchronous:
            options["loop"] = self._loop
        if name in WEB and not self.targets.is_local:
            options.setdefault("get_client", guarded_client(self.targets))
        fs = kind(*arguments, **options)
        if http.is_supported(fs):
            http.limit_bodies(fs)
        return fs


class _Filesystems(dict[str | None, Any]):
    """Filesystems of targets by protocol. They are made when they are first needed.

    Args:
        make: Makes the one of a protocol; ``None`` for targets without one.
    """

    def __init__(self, make: Callable[[str | None], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, protocol: str | None) -> Any:
        fs = self[protocol] = self._make(protocol)
        return fs


def _first(protocol: str | tuple[str, ...]) -> str:
    return protocol if isinstance(protocol, str) else protocol[0]


# ------------------------------------------------------------------ documents


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
    fs, path = url_to_fs(document, **options, **({} if protocol is None else {"protocol": protocol}))
    if ".json" not in path and (document.endswith(("parq", "parquet", "/")) or fs.isdir(path)):
        return LazyReferenceMapper(path, fs=fs, cache_size=cache_size)
    limit = config.get().max_document_bytes
    data: Any
    if isinstance(fs, LocalFileSystem):
        data = read_regular_file(path, limit)
    elif http.is_supported(fs):
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
