"""S3 operations through s3fs that fsspec has no interface for: versions, conditional writes, deletion in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zarrasync.stores.fsspec.identity import S3
from zarrasync.stores.http.responses import Response, parse_value, range_header
from zarrasync.stores.remote import WRITE_MARK, CurrentValue
from zarrasync.stores.values import Request, Value

SMALL, ONE_REQUEST = 100 << 20, 5 << 30
"""Sizes in bytes up to which a value is stored by one request, and can be."""


def is_supported(fs: Any, protocol: str) -> bool:
    """Return whether a filesystem is s3fs."""
    return protocol in S3 and hasattr(fs, "_call_s3")


def without_retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options for a filesystem that makes each request once.

    If the response to a conditional write is lost, a retry would find the value that the first attempt stored, and
    mistake it for a conflict.
    """
    extra = dict(options.get("config_kwargs") or {})
    return {**options, "config_kwargs": {**extra, "retries": {"total_max_attempts": 1}}}


async def _disable_aiohttp_retries(fs: Any, bucket: str) -> None:
    """Keep aiohttp from repeating requests, for which neither it nor aiobotocore has an option."""
    with suppress(AttributeError):  # private attributes may change
        client = await fs.get_s3(bucket)
        (await client._endpoint.http_session._get_session(None))._retry_connection = False


async def read(fs: Any, path: str, request: Request) -> Value:
    """Return a value or a byte range of it, with version and size.

    Raises:
        TransientError: If the service sent another byte range.
    """
    bucket, key, _ = fs.split_path(path)
    byte_range = range_header(request)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **({"Range": byte_range} if byte_range else {}))
    try:
        request.check_size(answer["ContentLength"])
        data = await answer["Body"].read()
    finally:
        answer["Body"].close()
    content_range = answer.get("ContentRange")
    if content_range:
        response = Response(206, "", {"content-range": content_range}, data)
    else:
        response = Response(200, "", {}, data)
    return parse_value(request, response, answer.get("ETag"))


async def look_up(fs: Any, path: str) -> CurrentValue:
    """Return the version of a value, and the mark of the write that stored it."""
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("head_object", Bucket=bucket, Key=key)
    return CurrentValue(answer.get("ETag"), answer["Metadata"].get(WRITE_MARK))


async def put_conditionally(fs: Any, path: str, value: bytes, options: Mapping[str, Any]) -> Any:
    """Store a value by one request that is made once.

    Args:
        fs: A filesystem without retries.
        path: The path.
        value: The value.
        options: Arguments of S3's ``PutObject``, such as ``IfMatch``.
    """
    fs.retries = 1
    await _disable_aiohttp_retries(fs, fs.split_path(path)[0])
    return await fs._pipe_file(path, value, chunksize=ONE_REQUEST, **options)


def is_conflict(error: Exception) -> bool:
    """Return whether a conditional write failed because the value has changed or was erased."""
    return isinstance(error, FileExistsError) or _code_of(error) in ("PreconditionFailed", "412", "NoSuchKey")


def is_unsupported_condition(error: Exception) -> bool:
    """Return whether a service does not support conditional writes."""
    return _code_of(error) in ("NotImplemented", "501")


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of the response; ``None`` without a response."""
    status = (_response_of(error).get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return None if status is None else int(status)


def _code_of(error: Exception) -> str:
    return str((_response_of(error).get("Error") or {}).get("Code", ""))


def _response_of(error: Exception) -> Mapping[str, Any]:
    """Return the response that botocore attaches to an error, or s3fs to its cause."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return response if isinstance(response, Mapping) else {}
