"""fsspec filesystems as a store uses them: an instance per event loop, calls under a limit, pickling, opening by URL."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from zarrasync._concurrency.backoff import RetryCounts, pause
from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._concurrency.offload import run_abandonable
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._concurrency.semaphores import Held
from zarrasync._util.advice import suggest
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.config import Config
from zarrasync.errors import StoreError, UnknownAdapterError
from zarrasync.stores.cloud.storage_options import SERVICES, check_names
from zarrasync.stores.fsspec import http, s3
from zarrasync.stores.fsspec.identity import AZURE, CACHES, IMMEDIATE, service_of
from zarrasync.stores.http.responses import missing_error
from zarrasync.stores.remote import run_request

_QUICK_OPERATIONS = frozenset({"info", "isdir", "ls"})
"""Operations that change nothing and end soon, so that they can be abandoned after a timeout."""
_LONG_OPERATIONS = frozenset({"find", "rm"})
"""Operations whose duration grows with the number of files; they have no timeout."""
_VERBS = {"pipe_file": "write", "rm_file": "erase", "rm": "erase", "call_s3": "erase"}

_OF_LOOPS = ("asynchronous", "loop", "skip_instance_cache")
"""Arguments of filesystems that belong to an event loop."""
_PROCESS_TOKEN = secrets.token_hex(8)
"""Distinguishes this process from processes with the same id on other machines."""


class Filesystem:
    """A filesystem. Asynchronous ones (s3, gs, az, http, …) get an instance per event loop, blocking ones are shared.

    Args:
        fs: The fsspec filesystem. One of references is replaced by one that keeps to the rule of ``Targets``.
        allow_targets: URLs and local directories that references may lead to, in addition to the rule.

    Attributes:
        template: The fsspec filesystem, from whose arguments instances are made.
        protocol: Its first protocol.
        blocking: Whether its methods block.
        service: What its paths refer to.
        instances: The instance of an asynchronous filesystem for each event loop.
        unretried: The same for s3fs, with instances that make each request once.
    """

    def __init__(self, fs: Any, allow_targets: Iterable[str] = ()) -> None:
        if _is_reference(fs):
            fs = _guarded(fs, allow_targets)
        elif allow_targets:
            raise TypeError("allow_targets is for documents of references")
        self.template = fs
        # Caches of files claim to be asynchronous like the filesystem behind them, but are not.
        self.blocking = not (fs.async_impl and _is_asynchronous(type(fs)))
        self.protocol: str = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self.service = service_of(fs, self.protocol)
        self._make_instances()

    def _make_instances(self) -> None:
        self.instances: PerLoop[Any] = PerLoop(self._make_instance, _close)
        self.unretried: PerLoop[Any] = PerLoop(partial(self._make_instance, retries=False), _close)

    @property
    def document(self) -> str:
        """The document of references, for messages; empty for other filesystems, and for references in memory."""
        return self.template.targets.document and self.template.targets.name if _is_reference(self.template) else ""

    def confined(self) -> Filesystem:
        """Return a filesystem whose references lead to local files in the directory of their document only."""
        return Filesystem(self.template.confined()) if _is_reference(self.template) else self

    @property
    def shareable(self) -> bool:
        """Whether other processes can access the files."""
        return self.protocol != "memory"

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("instances", "unretried")}
        return state if self.shareable else {**state, "template": _ForeignMemory.wrap(self.template)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.template, _ForeignMemory):
            self.template = self.template.unwrap()
        self._make_instances()

    async def _make_instance(self, *, retries: bool = True) -> Any:
        template = self.template
        if _is_reference(template):
            return template.on_loop(asyncio.get_running_loop())
        options = {**template.storage_options, "skip_instance_cache": True}
        if not retries:
            options = s3.without_retries(options)
        if self.protocol not in AZURE:  # at exit, adlfs would close its client on a loop that no longer exists
            options.update(asynchronous=True, loop=asyncio.get_running_loop())
        fs = type(template)(*template.storage_args, **options)
        start = getattr(fs, "set_session", None) or getattr(fs, "_set_session", None)
        if start is not None:
            await start()
        return fs

    async def call(
        self, limiter: Callable[[], AdaptiveLimiter], seconds: float, operation: str, /, *args: Any, **options: Any
    ) -> Any:
        """Call an operation of the filesystem: directly if it is blocking, otherwise under a limiter.

        Args:
            limiter: Returns the semaphore of requests in flight.
            seconds: Timeout; 0 for no limit. Changes and long operations of blocking filesystems have no timeout.
            operation: Name of the method, without the underscore of asynchronous ones.
            *args: Its arguments.
            **options: Its keyword arguments.
        """
        if self.blocking:
            work = partial(getattr(self.template, operation), *args, **options)
            # An abandoned write would go on, and could overwrite later ones.
            return call_blocking(work, self.protocol, seconds) if operation in _QUICK_OPERATIONS else work()
        fs = await self.instances.get()
        make = partial(getattr(fs, f"_{operation}"), *args, **options)
        async with Held(limiter()):
            try:
                return await run_request(
                    make, _VERBS.get(operation, "read"), 0.0 if operation in _LONG_OPERATIONS else seconds
                )
            except FileNotFoundError as error:
                raise missing_error(error) from error

    async def close(self) -> None:
        """Close the running loop's instances."""
        if not self.blocking:
            await self.instances.close()
            await self.unretried.close()


def open_url(url: str, options: Mapping[str, Any], connections: int) -> tuple[Any, str]:
    """Return the filesystem of a URL, and the path in it.

    Args:
        url: The URL.
        options: Storage options of the filesystem.
        connections: Maximum number of connections for clients that limit connections themselves.

    Raises:
        UnknownAdapterError: If no filesystem is known for the URL's protocol.
        TypeError: If an option looks like a misspelt one.
        ImportError: If the filesystem needs a package that is not installed.
        StoreError: If it cannot be opened.
    """
    from fsspec.core import url_to_fs

    options, protocol = dict(options), url.partition("://")[0]
    if "::" not in url:
        options.setdefault("use_listings_cache", False)
        if protocol in ("s3", "s3a"):
            # botocore's default is ten connections, however many requests there are.
            extra = dict(options.get("config_kwargs") or {})
            extra.setdefault("max_pool_connections", connections)
            options["config_kwargs"] = extra
    if SERVICES.get(protocol) == "gcs" and options.pop("anon", False):
        options["token"] = "anon"  # noqa: S105  # it means no credentials
    is_reference = "reference" in [part.partition("://")[0] for part in url.split("::")]
    # Constructors of other filesystems read documents and archives, whose libraries have other errors.
    kinds = OSError if is_reference else Exception
    try:
        if not is_reference:
            classes = [_filesystem_class(part.partition("://")[0], url) for part in url.split("::")]
            if len(classes) == 1:
                check_names(classes[0], options)
        try:
            return _open_references(url, options) if is_reference else url_to_fs(url, **options)
        except ImportError:
            raise
        except kinds as error:
            raise StoreError(
                f"{redact(url)!r} cannot be opened: {type(error).__name__}: {redact(str(error))}"
            ) from error
    except ImportError as error:
        install = f"pip install 'zarrasync[{SERVICES[protocol]}]'" if protocol in SERVICES else str(error)
        raise ImportError(f"{protocol}:// URLs need a package that is not installed: {install}") from error


def _open_references(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a document of references, or a cache of one, and the path in it.

    Raises:
        StoreError: If something other than a cache is in front of it, or its document is behind other references.
    """
    from fsspec import filesystem
    from fsspec.core import _un_chain

    from zarrasync.stores.fsspec.references import References

    own = {name: value for name, value in options.items() if name != "allow_targets"}
    chain = _un_chain(url, own)
    number = [protocol for _, protocol, _ in chain].index("reference")
    document = dict[str, Any]()
    for inner, protocol, arguments in reversed(chain[number + 1 :]):
        document = {"fo": inner, "target_protocol": protocol, "target_options": {**arguments, **document}}
    arguments = {"allow_targets": options.get("allow_targets", ()), **chain[number][2], **document}
    if "fo" not in arguments:
        raise StoreError(f"{redact(url)!r} names no document; write reference::URL, or pass its URL as the option 'fo'")
    fs: Any = References(**arguments)
    for _, protocol, arguments in reversed(chain[:number]):
        if protocol not in CACHES:
            raise StoreError(f"{redact(url)!r} cannot be opened: only caches can be in front of references")
        fs = filesystem(protocol, fs=fs, **arguments)
    return fs, chain[0][0]


def _is_reference(fs: Any) -> bool:
    protocol = getattr(fs, "protocol", None)
    return protocol == "reference" or (isinstance(protocol, tuple) and "reference" in protocol)


def _guarded(fs: Any, allow_targets: Iterable[str]) -> Any:
    """Return a filesystem of the same references that keeps to the rule of ``Targets``."""
    from zarrasync.stores.fsspec.references import References

    if isinstance(fs, References) and not allow_targets:
        return fs
    options = {name: value for name, value in fs.storage_options.items() if name not in _OF_LOOPS}
    return References(*fs.storage_args, **{**options, **({"allow_targets": allow_targets} if allow_targets else {})})


def _filesystem_class(protocol: str, url: str) -> Any:
    from fsspec import available_protocols, get_filesystem_class

    try:
        return get_filesystem_class(protocol)
    except ValueError:
        known, cutoff = available_protocols(), 0.5 if len(protocol) < 3 else 0.6  # s4 is half of s3
        hint = suggest(protocol, known, f"install an fsspec filesystem for {protocol}://", cutoff=cutoff)
        text = f"cannot open {redact(url)!r}: unknown protocol {protocol!r}; {hint}"
        raise UnknownAdapterError(text, scheme=protocol, known=tuple(known)) from None


def is_local(fs: Any) -> bool:
    """Return whether a filesystem accesses local files, or does so through zarr-python's asynchronous wrapper.

    Filesystems derived from fsspec's may have other paths or bytes.
    """
    from fsspec.implementations.local import LocalFileSystem

    return type(getattr(fs, "sync_fs", fs)) is LocalFileSystem


def _is_asynchronous(kind: type) -> bool:
    from fsspec.asyn import AsyncFileSystem

    return issubclass(kind, AsyncFileSystem)


async def _close(fs: Any) -> None:
    for other in getattr(fs, "fss", {}).values():  # filesystems behind references
        if other is not fs:
            await _close(other)
    session = getattr(fs, "_s3", None) or getattr(fs, "_session", None) or getattr(fs, "service_client", None)
    if session is not None:
        await session.close()


class _ForeignMemory:
    """A pickled filesystem whose files are in the memory of one process."""

    def __init__(self, fs: Any, process: tuple[str, int]) -> None:
        self._fs, self._process = fs, process

    @classmethod
    def wrap(cls, fs: Any) -> _ForeignMemory:
        """Return what represents a filesystem of this process in others."""
        return fs if isinstance(fs, _ForeignMemory) else cls(fs, (_PROCESS_TOKEN, os.getpid()))

    def unwrap(self) -> Any:
        """Return the filesystem in the process that has its files; elsewhere this object, whose methods fail."""
        return self._fs if self._process == (_PROCESS_TOKEN, os.getpid()) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise StoreError(
            "the files of an fsspec memory filesystem exist only in the process that created them; pass a dict, which "
            "is pickled with its values, or use files or object storage, which all processes can access"
        )


T = TypeVar("T")


def call_blocking(work: Callable[[], T], protocol: str, timeout: float) -> T:
    """Return the result of a call. A call to a network filesystem is abandoned after a timeout, or when cancelled.

    Args:
        work: The call.
        protocol: The filesystem's protocol.
        timeout: Seconds; 0 for no limit.

    Raises:
        TimeoutError: If it takes longer.
    """
    return work() if protocol in IMMEDIATE else run_abandonable(work, timeout)


async def read_file(fs: Any, protocol: str, path: str, settings: Config, **options: Any) -> Buffer:
    """Return the bytes of a file, retrying after lost connections as the settings allow."""
    attempts, wait = 0, 0.1
    while True:
        attempts += 1
        try:
            work = partial(_cat_file, fs, protocol, path, options)
            return work() if _is_cached(fs, protocol, path) else call_blocking(work, protocol, settings.total_timeout)
        except Exception as error:
            if attempts > settings.retries or not http.is_transient(error):
                raise
        RetryCounts.count("retries")
        await pause(wait)
        wait *= 2


def _is_cached(fs: Any, protocol: str, path: str) -> bool:
    """Return whether a cache has the whole file, so that reading it makes no request."""
    return protocol in ("simplecache", "filecache") and bool(fs._check_file(fs._strip_protocol(path)))


def _cat_file(fs: Any, protocol: str, path: str, options: dict[str, Any]) -> Buffer:
    """Return the bytes of a file. After a failure, remove the partial file that ``simplecache`` would serve later."""
    try:
        data: Buffer
        if http.is_supported(fs):
            from fsspec.asyn import sync

            data = cast(Buffer, sync(fs.loop, http.cat_file, fs, path, **options))
        else:
            data = fs.cat_file(path, **options)
        return data
    except FileNotFoundError:
        raise
    except BaseException:
        if protocol == "simplecache":
            with suppress(FileNotFoundError):
                os.remove(os.path.join(fs.storage[-1], fs._mapper(fs._strip_protocol(path))))
        raise
