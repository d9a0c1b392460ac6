"""Settings of the library.

Later sources override earlier ones: defaults, ``ZARRASYNC_*`` environment variables, ``with config.set(...)``, and the
``config=`` argument of functions that open or create nodes. A node keeps the settings that applied when it was opened.

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
from functools import lru_cache
from typing import Any, Literal

from zarrasync._util.advice import most_similar, suggest

__all__ = ["Config", "get", "set"]

MiB = 1 << 20
_CORES = os.cpu_count() or 1
_POSITIVE = ("memory_budget", "batch_bytes", "coalesce_size")
_CHOICES = {
    "unaligned": ("safe", "allow", "error"),
    "dtype_fallback": ("warn", "error", "allow"),
    "native": ("auto", "off", "require"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the library.

    Attributes:
        zarr_format: The format of new nodes: 2, 3, ``"3-draft"`` or ``"3-draft-2022"``.
        threads: The number of threads that decode and encode (0: one per core).
        concurrency: The number of concurrent requests per store, even if the store has a higher limit (0: chosen
            by the store). For local files, it limits the number of threads of a call.
        memory_budget: The maximum size of chunks in memory while the process reads and writes, in bytes. Concurrent calls
            with different budgets share the largest of them, and each keeps to its own.
        batch_bytes: The decoded size of a batch of chunks that one thread reads or writes, in bytes.
        write_empty_chunks: Store chunks that contain only the fill value.
        coalesce_gap: Byte ranges of one value that are at most this many bytes apart are fetched with one request.
        coalesce_size: The maximum size of such a request, in bytes.
        retries: The number of retries of a request after a temporary failure (status 503, a lost connection).
        request_timeout: Timeout of one request in seconds (0: none).
        total_timeout: Timeout of a request with all retries, and of waiting for other writers, in seconds (0: none).
        unaligned: Whether assignments and appends may change a part of a chunk. ``"safe"``: if the store supports
            conditional writes, or locks that exclude all other writers, so that the rest of the chunk cannot be lost;
            ``"allow"``: always; ``"error"``: never. ``ingest`` and ``integrations.dask.store`` have a parameter for it.
        fsync: Local files: flush each file to disk before it is renamed to its final name.
        dtype_fallback: The reaction to an unknown data type with a fallback: ``"warn"`` and use the fallback, raise an
            ``"error"``, or ``"allow"`` the fallback silently.
        allow_pickle: Open arrays whose chunks are pickles. Reading a pickle can run arbitrary code, so set this only
            for data that you trust.
        max_document_bytes: The largest size of a metadata document, in bytes.
        max_chunk_bytes: The largest decoded size of a chunk, in bytes (0: no limit for chunks of fixed size; the content
            of strings, bytes, and objects may have 64 MiB, or 64 times its stored size if that is more).
        max_read_bytes: The largest size of the result of a read, in bytes (0: no limit).
        chunk_cache_bytes: The size of a cache of decoded chunks, in bytes, which all arrays with this setting share (0: none).
            For services that read the same chunks again and again. ``array.chunk_cache`` has its statistics.
        chunk_cache_max_age: Seconds for which cached chunks are trusted. Then one request compares the version of the
            stored value (0: on each read). Changes that this process makes are noticed at once.
        native: Whether the compiled kernel reads and writes chunks: ``"auto"`` if it is installed, ``"off"``, or
            ``"require"``, with which a missing kernel is an error. Pure Python gives the same results more slowly.
        debug_errors: Keep all frames in the tracebacks of synchronous calls. The value in effect where a function is called
            counts, not the setting of a node.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.

    Example:
        >>> config = za.Config(memory_budget=1 << 30, retries=2)
        >>> config.retries
        2
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
    chunk_cache_bytes: int = 0
    chunk_cache_max_age: float = 0.0
    native: Literal["auto", "off", "require"] = "auto"
    debug_errors: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(field.default, float) and type(getattr(self, field.name)) is int:
                object.__setattr__(self, field.name, float(getattr(self, field.name)))
            if field.name != "zarr_format":
                _check_setting(field.name, getattr(self, field.name), type(field.default))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                first, second, third = map(repr, choices)
                raise ValueError(f"config {name} must be {first}, {second} or {third}, found {getattr(self, name)!r}")

    @property
    def pool_size(self) -> int:
        """The number of threads that decode and encode."""
        return self.threads or _CORES

    @property
    def kernel(self) -> str:
        """Whether the compiled kernel is active with these settings, and if not, the reason."""
        from zarrasync._kernel.library import describe

        return describe(self.native)


def _check_setting(name: str, value: Any, kind: type) -> None:
    """Check the type of a setting and, if it is a number, its range."""
    if type(value) is not kind:
        raise TypeError(f"config {name} must have type {kind.__name__}, found {value!r}")
    if not isinstance(value, int | float):
        return
    if name in _POSITIVE and value < 1:
        raise ValueError(f"config {name} must be at least 1, found {value}")
    if not 0 <= value < math.inf:
        raise ValueError(f"config {name} must be finite and at least 0, found {value}")


def _read_environment(environment: Mapping[str, str]) -> Config:
    changes: dict[str, Any] = {}
    for field in fields(Config):
        text = environment.get(f"ZARRASYNC_{field.name.upper()}")
        if text is not None:
            changes[field.name] = _convert(field.name, text, field.default)
    names = [f"ZARRASYNC_{field.name.upper()}" for field in fields(Config)]
    for variable in environment.keys() - names:
        if close := most_similar(variable, names, 0.85):
            warnings.warn(f"the environment variable {variable} is not a setting; did you mean {close}?", stacklevel=4)
    return Config(**changes)


def _convert(name: str, text: str, default: object) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if isinstance(default, int):
            return int(text) if name != "zarr_format" or text.isdigit() else text
        if isinstance(default, float):
            return float(text)
    except (KeyError, ValueError):
        kind = type(default).__name__
        raise ValueError(f"ZARRASYNC_{name.upper()}={text!r} is not a valid {kind}") from None
    return text


@lru_cache(maxsize=1)
def _base() -> Config:
    return _read_environment(os.environ)


_override: ContextVar[Config | None] = ContextVar("zarrasync_config", default=None)


def get() -> Config:
    """Return the settings of the current task or thread.

    Example:
        >>> za.config.get().zarr_format
        3
    """
    return _override.get() or _base()


class set:
    """Change settings inside a ``with`` block, in the current task or thread only.

    To change them for a whole process, set ``ZARRASYNC_*`` environment variables. To change them for one node, pass
    ``config=``.

    Args:
        **changes: Settings by name.

    Raises:
        TypeError: If a setting does not exist, or a value has the wrong type.
        ValueError: If a value is out of range.

    Example:
        >>> with za.config.set(threads=2) as config:
        ...     config.threads
        2
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
            warnings.warn(
                "config.set(...) has no effect without a with block: write `with config.set(...):`", stacklevel=2
            )


@contextlib.contextmanager
def using(config: Config | Mapping[str, Any] | None) -> Iterator[None]:
    """Apply a ``config=`` argument inside a ``with`` block."""
    token = None if config is None else _override.set(resolve(config))
    try:
        yield
    finally:
        if token is not None:
            _override.reset(token)


def resolve(config: Config | Mapping[str, Any] | None) -> Config:
    """Return the settings for a ``config=`` argument: a ``Config``, or changes to the current settings.

    Raises:
        TypeError: If a setting does not exist, or a value has the wrong type.
        ValueError: If a value is out of range.
    """
    if isinstance(config, Config):
        return config
    if config is None:
        return get()
    if not isinstance(config, Mapping):
        raise TypeError(f"config is a Config or a mapping from settings to values, not {config!r}")
    unknown = sorted({*config} - {field.name for field in fields(Config)})
    if unknown:
        names = [field.name for field in fields(Config)]
        hint = suggest(unknown[0], names, f"the settings are {', '.join(names)}")
        raise TypeError(f"unknown setting {unknown[0]!r}; {hint}")
    return replace(get(), **config)
