"""What a web server's answers mean for a store: values and parts of them, failures that pass."""

from __future__ import annotations

import email.utils
import re

from zarrasync._concurrency import clock
from zarrasync.stores.base import Request, Value, clip
from zarrasync.stores.errors import lacks_bucket
from zarrasync.stores.http.client import Answer
from zarrasync.stores.remote import Attempt

__all__ = [
    "AGAIN",
    "SLOW_DOWN",
    "UNABLE",
    "UNDONE",
    "check_passing",
    "found_missing",
    "past_end",
    "range_of",
    "value_of",
    "version_of",
]

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
SLOW_DOWN = frozenset({429, 503})
UNDONE = AGAIN | {409}
"""Statuses of a compared write that may succeed when it is made again: S3 has 409 for two at the same time."""
UNABLE = 501
"""That of a compared write to a service which knows no conditions."""
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def range_of(request: Request) -> str:
    """The Range header of a request; empty for a whole value."""
    if request.suffix:
        return f"bytes=-{max(request.length or 0, 1)}"
    if request.length is None:
        return f"bytes={request.start}-" if request.start else ""
    return f"bytes={request.start}-{request.start + max(request.length, 1) - 1}"


def check_passing(answer: Answer) -> None:
    """Raise ``Attempt`` for a status that another attempt may change."""
    if answer.status in AGAIN:
        reason = f"the server answered {answer.status} {answer.reason}"
        raise Attempt(reason, slow_down=answer.status in SLOW_DOWN, wait=_wait(answer.headers.get("retry-after")))


def value_of(request: Request, answer: Answer, version: object) -> Value:
    """What an answer of status 200 or 206 holds of what was asked for.

    Raises:
        Attempt: If it is another part.
    """
    if answer.status == 200:  # it knows no ranges
        return Value(clip(answer.body, request), version, len(answer.body))
    data, header = answer.body, answer.headers.get("content-range", "")
    if header.endswith("/0") and not len(data):  # some call the range of an empty value so, for want of a word
        return Value(b"", version, 0)
    found = _RANGE.fullmatch(header)
    if found is None or int(found[2]) - int(found[1]) + 1 != len(data):
        raise Attempt(f"the server sent {len(data)} bytes and calls them {header!r}")
    first, size = int(found[1]), None if found[3] == "*" else int(found[3])
    start = request.start
    if request.suffix:
        start = first if size is None else max(0, size - (request.length or 0))
    length = len(data) if request.length is None else request.length
    begin = start - first
    if begin < 0 or (begin and begin >= len(data) and length):
        raise Attempt(f"bytes from {start} on were asked for, the server sent {header!r}")
    part = data[begin : begin + length]
    short = size is not None and len(part) < min(length, size - start)
    if short or (request.length is None and size is not None and first + len(data) < size):
        raise Attempt(f"the server sent less than it was asked for: {header!r}")
    return Value(part, version, size)


class NoSuchBucket(Exception):
    """What an absent key looks like, too, to most filesystems."""


def found_missing(error: FileNotFoundError) -> Exception:
    """What it was that was not found: the key, or the bucket that it was looked for in."""
    return NoSuchBucket(str(error)) if lacks_bucket(error) else error


def past_end(error: Exception) -> bool:
    """Whether an error may mean that a range begins past the end (HTTP 416)."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    text = f"{error} {error.__cause__}"
    return status == 416 or "InvalidRange" in text or "416" in text or "not satisfiable" in text.lower()


def version_of(answer: Answer) -> object:
    """What tells a value from later ones; ``None`` where two of one second may be called the same.

    A weak tag, or a time, tells values apart if the later of them came at least a second after the other (RFC 9110, 8.8.2.2).
    """
    headers = answer.headers
    tag, modified = headers.get("etag", ""), headers.get("last-modified", "")
    if tag and not tag.startswith("W/"):
        return tag
    since, now = _seconds(modified), _seconds(headers.get("date", ""))
    if since is None or now is None or now - since <= 1:
        return None
    return (tag, modified)


def _seconds(text: str) -> float | None:
    """The time that a header says."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _wait(text: str | None) -> float:
    """The seconds of a Retry-After header."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(text)
    return max(0.0, (_seconds(text) or 0.0) - clock.wall_time())
