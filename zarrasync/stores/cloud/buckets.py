"""Shared obstore stores: one per bucket and settings, each with a twin without retries for conditional writes, in processes that can use obstore."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any, ClassVar

from zarrasync._concurrency import clock
from zarrasync.stores.cloud.regions import known_region
from zarrasync.stores.cloud.storage_options import CREDENTIAL_PROVIDER
from zarrasync.stores.errors import message_of

_buckets: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
_latest: deque[Any] = deque(maxlen=1)
"""Kept alive for the next store, as programs open one array after another. More would keep connections open."""


def open_bucket(
    url: str, settings: dict[str, Any], client_options: dict[str, Any], retry_config: dict[str, Any]
) -> Any:
    """Return an obstore store of a whole bucket, the same one for equal settings and environment.

    Making one takes 15 ms, and each has its own connections and credentials. Stores with Google's default
    credentials are not shared, because the files with these credentials may be replaced.

    Args:
        url: The bucket's URL, without a path.
        settings: obstore's settings for the service.
        client_options: obstore's settings for its HTTP client.
        retry_config: obstore's settings for retries.

    Raises:
        ValueError: If obstore rejects the URL or the settings.
    """
    from obstore.store import from_url

    open_url: Any = from_url  # its parameters depend on the URL
    bucket_url = url.replace("s3a://", "s3://").replace("gcs://", "gs://")
    config = {name: value for name, value in settings.items() if name != CREDENTIAL_PROVIDER}
    provider = {CREDENTIAL_PROVIDER: settings[CREDENTIAL_PROVIDER]} if CREDENTIAL_PROVIDER in settings else {}

    def make() -> Any:
        try:
            return open_url(
                bucket_url, config=config, client_options=client_options, retry_config=retry_config, **provider
            )
        except Exception as error:
            raise ValueError(f"{url!r} cannot be opened: {message_of(error)}") from error

    try:
        options = (settings, client_options, retry_config, os.environ)
        identity = (bucket_url, *(frozenset(mapping.items()) for mapping in options))
    except TypeError:  # an unhashable setting, such as headers
        return make()
    if bucket_url.startswith("gs://") and settings.keys().isdisjoint(("google_skip_signature", CREDENTIAL_PROVIDER)):
        return make()
    store = _buckets.get(identity)
    if store is None:
        store = _buckets[identity] = make()
    if region := known_region(store):
        return open_bucket(url, {**settings, "aws_region": region}, client_options, retry_config)
    _latest.append(store)
    return store


class UnretriedTwin:
    """An obstore store with the settings of another one, but without retries.

    If the response to a conditional write is lost, a retry would find the value that the first attempt stored, and
    mistake it for a conflict.

    Attributes:
        original: The other store.
        twin: The store without retries.
    """

    _twins: ClassVar[weakref.WeakValueDictionary[int, UnretriedTwin]] = weakref.WeakValueDictionary()
    _latest: ClassVar[deque[UnretriedTwin]] = deque(maxlen=1)

    def __init__(self, store: Any) -> None:
        self.original = self.twin = store  # kept alive, so that its id is not reused
        if hasattr(store, "__getnewargs_ex__"):  # memory stores have no arguments
            arguments, options = store.__getnewargs_ex__()
            self.twin = type(store)(*arguments, **{**options, "retry_config": {"max_retries": 0}})

    @classmethod
    def of(cls, store: Any) -> UnretriedTwin:
        """Return the twin of a store, which all users of the store share."""
        twin = cls._twins.get(id(store))
        if twin is None:
            twin = cls._twins[id(store)] = cls(store)
        cls._latest.append(twin)
        return twin


_first_process = 0


def is_usable() -> bool:
    """Return whether obstore works in this process. It does not work in a fork of a process that has used it.

    Calling this function counts as use.
    """
    global _first_process
    if not _first_process:
        _first_process = os.getpid()
        atexit.register(_wait_for_foreign_threads)
    return _first_process == os.getpid()


def _wait_for_foreign_threads() -> None:
    """Wait until obstore's threads have left the interpreter.

    A thread that has just delivered a response may wait for the interpreter lock. If the interpreter ends meanwhile, the
    thread is unwound through Rust code, which aborts the process.
    """
    end = clock.monotonic() + 1.0
    while clock.monotonic() < end:
        python_threads = {thread.ident for thread in threading.enumerate()}
        if not set(sys._current_frames()) - python_threads:  # noqa: SLF001  # documented, despite its name
            break
        clock.sleep_blocking(0.001)
