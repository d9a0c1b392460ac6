"""Errors of backends as errors of this library: what failed, on which key, and what may help."""

from __future__ import annotations

import re

from zarrasync.errors import StoreError
from zarrasync.stores.base import Store

__all__ = ["lacks_bucket", "plain_text", "store_error", "tells_of_key", "without_queries"]


_HINTS = {
    "NoCredentialsError": "for public data pass storage_options={'anon': True}",
    "PermissionError": "the credentials in use do not allow it; for public data pass storage_options={'anon': True}",
}


_REGION = re.compile(r"(?i)expecting '([a-z0-9-]+)'|PermanentRedirect|redirect without LOCATION")
"""What S3 and its clients say when a bucket lies in another region than the one that was asked."""


_NO_BUCKET = re.compile(
    r"(?i)(Code>|Code: ?|\()(NoSuchBucket|ContainerNotFound)\b|specified (bucket|container) does not exist"
)
"""What services and their clients say of a bucket that is not there; a key may have such a name."""


_NO_CREDENTIALS = re.compile(
    r"(?i)(Code>|Code: ?|\()(InvalidAccessKeyId|SignatureDoesNotMatch|RequestTimeTooSkewed|ExpiredToken|InvalidToken|TokenRefreshRequired|"
    r"AuthenticationFailed|NoAuthenticationInformation|InvalidAuthenticationInfo|AuthorizationHeaderMalformed)\b|>Request has expired|AWS Access Key Id you provided does not|"
    r"request signature we calculated does not|The provided token (has expired|is malformed)|"
    r"difference between the request time and the current time|Server failed to authenticate"
)
"""What they say of keys, signatures and tokens that are wrong or have expired."""


_WORD = re.compile(r"[^\s'\"<>]+")


def store_error(error: Exception, key: str, verb: str, store: Store) -> StoreError:
    """An error of a backend as ours; says what was tried on which key of which store."""
    kind = type(error).__name__
    hint = f" ({_HINTS[kind]})" if kind in _HINTS and not store.near else ""
    if elsewhere := _REGION.search(str(error)):
        region = elsewhere[1] or "…"
        given = {"client_kwargs": {"region_name": region}}
        hint = f" (the bucket lies in another region: pass storage_options={given})"
    if lacks_bucket(error):
        hint = " (there is no such bucket: look at the URL, and at endpoint and account among the options)"
    return StoreError(f"could not {verb} {key!r} in {store!r}: {kind}: {plain_text(error)}{hint}", key=key)


def lacks_bucket(answer: object) -> bool:
    """Whether a service says that there is no bucket at all: that tells nothing about a key, least of all its absence."""
    # s3fs and adlfs keep what was answered there.
    cause = answer.__cause__ if isinstance(answer, BaseException) else None
    return any(_NO_BUCKET.search(str(said)) is not None for said in (answer, cause))


def tells_of_key(answer: object) -> bool:
    """Whether a refusal is about the key that was asked for, and not about the bucket or the credentials."""
    if isinstance(answer, bytes) and (
        b"Code>" not in answer or b">NoSuchKey<" in answer or b">BlobNotFound<" in answer
    ):
        return True  # as nearly all that is absent is answered, which may be most of an array's chunks
    said = str(answer)
    return not lacks_bucket(said) and _NO_CREDENTIALS.search(said) is None


def plain_text(error: Exception) -> str:
    """What an error says to people: obstore adds what it looks like inside."""
    return without_queries(str(error).partition("\n\nDebug source:")[0])


def without_queries(text: str) -> str:
    """A text without what stands behind the question mark of URLs: signatures are secrets."""
    return _WORD.sub(_without_query, text)


def _without_query(word: re.Match[str]) -> str:
    place, mark, query = word[0].partition("?")
    if not mark or "/" not in place or not query:
        return word[0]
    _, closing, rest = query.partition(")")
    return f"{place}?…{closing}{rest}" if query[0] != ")" else word[0]
