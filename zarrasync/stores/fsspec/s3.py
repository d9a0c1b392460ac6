"""What S3 can do that fsspec has no words for: values with their versions, and replacing just these, through s3fs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from zarrasync.stores.base import Request, Value
from zarrasync.stores.http.client import Answer
from zarrasync.stores.http.responses import range_of, value_of
from zarrasync.stores.remote import MARK, Present

__all__ = [
    "ONE_REQUEST",
    "SMALL",
    "ask",
    "can_compare",
    "once",
    "present",
    "put_if",
    "says_changed",
    "says_unable",
    "status",
]

SMALL, ONE_REQUEST = 100 << 20, 5 << 30
"""Bytes of a value that s3fs stores by one request, and of those that one can store."""


def can_compare(fs: Any, protocol: str) -> bool:
    """Whether a filesystem is s3fs's."""
    return protocol in ("s3", "s3a") and hasattr(fs, "_call_s3")


def once(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a filesystem that makes each request once.

    If an answer is lost, another attempt finds what the first one has stored, and takes it for somebody else's.
    """
    known = dict(options.get("config_kwargs") or {})
    return {**options, "config_kwargs": {**known, "retries": {"total_max_attempts": 1}}}


async def _once_by_aiohttp(fs: Any, bucket: str) -> None:
    """Keep aiohttp, too, from a second attempt, for which neither it nor aiobotocore has a setting."""
    with suppress(AttributeError):  # they may be made in another way one day
        client = await fs.get_s3(bucket)
        (await client._endpoint.http_session._get_session(None))._retry_connection = False


async def ask(fs: Any, path: str, request: Request) -> Value:
    """A value, or a part of it, with its version and size.

    Raises:
        Attempt: If the service sent another part.
    """
    bucket, key, _ = fs.split_path(path)
    wanted = range_of(request)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **({"Range": wanted} if wanted else {}))
    try:
        data = await answer["Body"].read()
    finally:
        answer["Body"].close()
    part = answer.get("ContentRange")
    found = Answer(206, "", {"content-range": part}, data) if part else Answer(200, "", {}, data)
    return value_of(request, found, answer.get("ETag"))


async def present(fs: Any, path: str) -> Present:
    """What is stored under a path, and which write it comes from."""
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("head_object", Bucket=bucket, Key=key)
    return Present(answer.get("ETag"), answer["Metadata"].get(MARK))


async def put_if(fs: Any, path: str, value: bytes, options: Mapping[str, Any]) -> Any:
    """Store a value by one request, of which options say more; ``fs`` makes it once."""
    fs.retries = 1
    await _once_by_aiohttp(fs, fs.split_path(path)[0])
    return await fs._pipe_file(path, value, chunksize=ONE_REQUEST, **options)


def says_changed(error: Exception) -> bool:
    """Whether S3 says that a value is not the one that was to be replaced; it may be gone."""
    return isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412", "NoSuchKey")


def status(error: Exception) -> int | None:
    """The HTTP status of an answer; ``None`` if there was none."""
    found = (_response(error).get("ResponseMetadata") or {}).get("HTTPStatusCode")
    return None if found is None else int(found)


def says_unable(error: Exception) -> bool:
    """Whether a service says that it knows no conditions."""
    return _code(error) in ("NotImplemented", "501")


def _code(error: Exception) -> str:
    return str((_response(error).get("Error") or {}).get("Code", ""))


def _response(error: Exception) -> Mapping[str, Any]:
    """What S3 has answered, as botocore keeps it with an error, or s3fs with that error's cause."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    return response if isinstance(response, Mapping) else {}
