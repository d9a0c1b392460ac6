"""Settings: one frozen value.

Defaults, then ``ZARRASYNC_*`` environment variables, then ``with config.set(...)``, then the
``config=`` argument of the opening or creating call. A node keeps the value that held when it
was opened.

>>> import zarrasync as za
>>> with za.config.set(concurrency=32):
...     za.config.get().concurrency
32
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

__all__ = ["Config", "get", "set"]

MiB = 1 << 20
_CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the library.

    Attributes:
        zarr_format: The format that ``create_*`` writes when none is given.
        threads: Threads that decode and encode (0: one per core).
        concurrency: Requests in flight per store (0: what suits the store).
        memory_budget: Bytes of chunks in flight in the whole process.
        batch_bytes: Decoded bytes that one pool job handles.
        write_empty_chunks: Store chunks that hold nothing but the fill value.
        coalesce_gap: Ranges of one value that are at most this far apart are fetched as one.
        coalesce_size: A merged range grows no longer than this.
        retries: How often a request that failed in a way that may pass (503, a lost connection) is made again.
        request_timeout: Seconds for one request (0: no limit).
        total_timeout: Seconds for a request and its retries, and for others who hold what is to be written (0: no limit).
        unaligned: Whether assignments and appends may change parts of chunks: ``"safe"`` where no other writer's part can
            get lost, as the store compares what it replaces or its locks hold for everybody; ``"allow"`` everywhere;
            ``"error"`` never. Jobs have a parameter for it.
        fsync: Local files: flush each file to the disk before it gets its name.
        dtype_fallback: What to do where a document offers a fallback for an unknown data type.
        allow_pickle: Open arrays whose chunks are pickles. Reading these runs code that the data names: only for data
            of one's own.
        max_document_bytes: A metadata document longer than this is refused.
        max_chunk_bytes: A chunk whose decoded size is larger than this is refused (0: no limit).
        max_read_bytes: A read whose result is larger than this is refused (0: no limit).
    """

    zarr_format: int | str = 3
    threads: int = 0
    concurrency: int = 0
    memory_budget: int = 192 * MiB
    batch_bytes: int = 2 * MiB
    write_empty_chunks: bool = False
    coalesce_gap: int = 32 * 1024
    coalesce_size: int = 8 * MiB
    retries: int = 6
    request_timeout: float = 60.0
    total_timeout: float = 300.0
    unaligned: Literal["safe", "allow", "error"] = "safe"
    fsync: bool = False
    dtype_fallback: Literal["warn", "error", "allow"] = "warn"
    allow_pickle: bool = False
    max_document_bytes: int = 256 * MiB
    max_chunk_bytes: int = 0
    max_read_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is float and type(value) is int:
                value = float(value)
                object.__setattr__(self, field.name, value)
            if field.name != "zarr_format" and type(value) is not kind:
                raise TypeError(f"config {field.name} is of type {kind.__name__}, not {value!r}")
        for name, least in (("memory_budget", 1), ("batch_bytes", 1), ("coalesce_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"config {name} must be at least {least}, not {getattr(self, name)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "zarr_format" and isinstance(value, int | float) and not 0 <= value < math.inf:
                raise ValueError(f"config {field.name} must be 0 or more, and finite; is {value}")
        for name, words in (("unaligned", ("safe", "allow", "error")), ("dtype_fallback", ("warn", "error", "allow"))):
            if getattr(self, name) not in words:
                first, second, third = map(repr, words)
                raise ValueError(f"config {name} is {first}, {second} or {third}, not {getattr(self, name)!r}")

    @property
    def pool_size(self) -> int:
        """The number of threads that decode and encode."""
        return self.threads or _CORES


def _read_environment(environment: Mapping[str, str]) -> Config:
    changes: dict[str, Any] = {}
    for field in fields(Config):
        text = environment.get(f"ZARRASYNC_{field.name.upper()}")
        if text is not None:
            changes[field.name] = _convert(field.name, text, field.default)
    names = [f"ZARRASYNC_{field.name.upper()}" for field in fields(Config)]
    for given in environment:
        close = get_close_matches(given, names, 1, 0.85) if given not in names else ()
        if close:
            warnings.warn(f"the environment variable {given} is not a setting; {close[0]} is", stacklevel=4)
    return Config(**changes)


def _convert(name: str, text: str, default: object) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if isinstance(default, int):
            return int(text) if name != "zarr_format" or text.isdigit() else text
    except (KeyError, ValueError):
        kind = type(default).__name__
        raise ValueError(f"ZARRASYNC_{name.upper()}={text!r} is not a valid {kind}") from None
    return text


@lru_cache(maxsize=1)
def _base() -> Config:
    return _read_environment(os.environ)


_override: ContextVar[Config | None] = ContextVar("zarrasync_config", default=None)


def get() -> Config:
    """The settings that hold here."""
    return _override.get() or _base()


class set:
    """Change settings inside a ``with`` block, for this task or thread alone.

    For a whole process set ``ZARRASYNC_*`` variables, for one node pass ``config=``.

    Args:
        **changes: Settings by name.

    Raises:
        TypeError: If there is no such setting, or a value is of the wrong type.
        ValueError: If a value is out of range.
    """

    def __init__(self, **changes: Any) -> None:
        resolve(changes)
        self._tokens: list[Token[Config | None]] | None = None
        self._changes = changes

    def __enter__(self) -> Config:
        self._tokens = [*(self._tokens or ()), _override.set(resolve(self._changes))]
        return get()

    def __exit__(self, *error: object) -> None:
        assert self._tokens
        _override.reset(self._tokens.pop())

    def __del__(self) -> None:
        if getattr(self, "_tokens", ()) is None:
            warnings.warn("config.set(...) holds inside a with block only: with config.set(...):", stacklevel=2)


@contextlib.contextmanager
def using(config: Config | Mapping[str, Any] | None) -> Iterator[None]:
    """Let a ``config=`` argument hold for what is done inside."""
    token = _override.set(resolve(config)) if config else None
    try:
        yield
    finally:
        if token is not None:
            _override.reset(token)


def resolve(config: Config | Mapping[str, Any] | None) -> Config:
    """A ``config=`` argument as a value: a whole one, or changes to what holds here."""
    if isinstance(config, Config):
        return config
    if not config:
        return get()
    unknown = sorted({*config} - {field.name for field in fields(Config)})
    if unknown:
        known = ", ".join(field.name for field in fields(Config))
        raise TypeError(f"unknown setting {unknown[0]!r}; the settings are {known}")
    return replace(get(), **config)
