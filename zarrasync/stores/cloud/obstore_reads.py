"""Reads of single objects by obstore, and the status and retries of its failed requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zarrasync.stores.cloud.identity import kind_of
from zarrasync.stores.remote import WRITE_MARK, CurrentValue
from zarrasync.stores.values import Request, Value


def version_field(store: Any) -> str:
    """Return the name that obstore gives the version which the service compares; Google compares generation numbers."""
    return "version" if kind_of(store) == "GCSStore" else "e_tag"


async def read(store: Any, path: str, request: Request, versions: bool) -> Value:
    """Return an object or a byte range of it.

    Args:
        store: An obstore store.
        path: The path of the object in it.
        request: The byte range.
        versions: Whether version and size must be returned.

    Raises:
        FileNotFoundError: If the object does not exist.
        Exception: One of obstore's, if it cannot be read.
    """
    import obstore

    if request.suffix and kind_of(store) == "AzureStore":  # without byte ranges from the end
        meta = await obstore.head_async(store, path)
        count = min(request.length or 0, meta["size"])
        request = request._replace(start=meta["size"] - count, length=count, suffix=False)
    start, length = request.start, request.length
    try:
        if not request.suffix and length is not None and length > 0 and not versions:
            return Value(memoryview(await obstore.get_range_async(store, path, start=start, length=length)))
        options: Any = {}
        if request.suffix:
            options["range"] = {"suffix": max(length or 0, 1)}
        elif length is not None:
            options["range"] = (start, start + max(length, 1))
        elif start:
            options["range"] = {"offset": start}
        response = await obstore.get_async(store, path, options=options)
        if not options:
            request.check_size(response.meta["size"])
        data = memoryview(await response.bytes_async())
    except FileNotFoundError:
        raise
    except Exception as error:
        return await _past_end(store, path, request, error)
    meta = response.meta
    if length is not None:
        data = data[len(data) - min(length, len(data)) :] if request.suffix else data[:length]
    return Value(data, meta.get(version_field(store)), meta["size"])


async def _past_end(store: Any, path: str, request: Request, error: Exception) -> Value:
    """Return no bytes if a byte range is past the end, which obstore does not distinguish from other failures."""
    import obstore

    if not request.suffix and not request.start and request.length is None:
        raise error
    meta = await obstore.head_async(store, path)
    size = meta["size"]
    if request.start >= size or size == 0:
        return Value(b"", meta.get(version_field(store)), size)
    raise error


async def look_up(store: Any, path: str) -> CurrentValue:
    """Return the version of an object, and the mark of the write that stored it."""
    import obstore

    response = await obstore.get_async(store, path, options={"range": (0, 1)})
    attributes: Mapping[str, Any] = response.attributes
    return CurrentValue(response.meta.get(version_field(store)), attributes.get(WRITE_MARK))


_STATUS = re.compile(r"non-2xx status code: (\d\d\d)")
_RETRIES = re.compile(r", after (\d+) retries")
_REFUSALS = {"PermissionDeniedError": 403, "UnauthenticatedError": 401}


def response_status(error: BaseException | None) -> int | None:
    """Return the HTTP status of the response; ``None`` without a response."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def refusal_status(error: Exception) -> int:
    """Return 401 or 403 if the service refused a request; 0 for other errors."""
    if "credential provider" in str(error):  # credentials are missing, so no request was made
        return 0
    return _REFUSALS.get(type(error).__name__, 0)


def retry_count(error: Exception) -> int:
    """Return how often obstore repeated the request."""
    match = _RETRIES.search(str(error))
    return int(match[1]) if match else 0
