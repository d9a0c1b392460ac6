"""Conversion of backend errors to ``StoreError``: what failed, for which key, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from zarrasync._util.memory import BudgetExceeded, reason_of
from zarrasync._util.redact import redact
from zarrasync.errors import StoreError
from zarrasync.stores.base import Store

_PUBLIC = "for public data pass the storage option anon=True"
_REFUSED = {
    "credentials": f"the credentials in use do not allow it; {_PUBLIC}",
    "anonymous": "anonymous requests are not allowed; pass credentials as storage options, without anon",
    "other": "the credentials in use do not allow it",
}
_NOT_FOUND = {
    "credentials": f"{_PUBLIC}, else pass credentials or set them up",
    "anonymous": "pass credentials or set them up",
    "other": "pass credentials or set them up",
}
_REFUSAL_STATUSES = {"PermissionDeniedError": 403, "UnauthenticatedError": 401}
"""Errors of obstore if a service refuses a request, and their HTTP statuses. obstore has others for local files."""
_REFUSALS = {"PermissionError", *_REFUSAL_STATUSES}
"""The same with the error of fsspec's file systems."""
_OTHER_REGION = re.compile(r"(?i)expecting '([a-z0-9-]+)'|PermanentRedirect|redirect without LOCATION")
"""Messages of S3 and its clients if a bucket is in another region than the requested one."""
_NO_BUCKET = re.compile(
    r"(?i)(Code>|Code: ?|\()(NoSuchBucket|ContainerNotFound)\b|specified (bucket|container) does not exist"
)
"""Messages of services and their clients if a bucket does not exist. A key may contain such a word."""
_BAD_CREDENTIALS = re.compile(
    r"(?i)(Code>|Code: ?|\()(InvalidAccessKeyId|SignatureDoesNotMatch|RequestTimeTooSkewed|ExpiredToken|InvalidToken|TokenRefreshRequired|"
    r"AuthenticationFailed|NoAuthenticationInformation|InvalidAuthenticationInfo|AuthorizationHeaderMalformed)\b|>Request has expired|AWS Access Key Id you provided does not|"
    r"request signature we calculated does not|The provided token (has expired|is malformed)|"
    r"difference between the request time and the current time|Server failed to authenticate"
)
"""Messages of services if keys, signatures or tokens are invalid or have expired."""
_NO_CREDENTIALS = re.compile(r"https?://[^/\s]+/(latest/(api/token|meta-data)|computeMetadata/|metadata/identity/)")
"""URLs from which clients request credentials of a virtual machine if they have no others."""


def store_error(error: Exception, key: str, verb: str, store: Store) -> StoreError:
    """Return a ``StoreError`` for an error of a backend.

    Args:
        error: The error.
        key: The key or prefix that was accessed.
        verb: The attempted operation, such as "read".
        store: The store.
    """
    kind = type(error).__name__
    access = store.access if verb in ("read", "list") or store.access != "credentials" else "other"
    is_refusal = kind in _REFUSALS and not store.is_local
    hint = f" ({_REFUSED[access]})" if is_refusal else ""
    if match := _OTHER_REGION.search(f"{error}\n{error.__cause__}"):  # s3fs keeps the response in the cause
        options = {"client_kwargs": {"region_name": match[1] or "…"}}
        hint = f" (the bucket lies in another region: pass the storage options {options})"
    reason = reason_of(error) if isinstance(error, BudgetExceeded | MemoryError) else f"{kind}: {message_of(error)}"
    if is_missing_bucket(error):
        hint, reason = (
            "",
            "the bucket does not exist; check its name, and the endpoint and account in the storage options",
        )
    elif (kind == "NoCredentialsError" or _NO_CREDENTIALS.search(str(error))) and not store.is_local:
        hint, reason = "", f"no credentials were found; {_NOT_FOUND[access]}"
    return StoreError(f"could not {verb} {key!r} in {store!r}: {reason}{hint}", key=key)


@contextmanager
def store_errors(key: str, verb: str, store: Store, kind: type[Exception] = Exception) -> Iterator[None]:
    """Raise a ``StoreError`` for an error of a backend in the block; for the arguments see ``store_error``."""
    try:
        yield
    except kind as error:
        raise store_error(error, key, verb, store) from error


def is_missing_bucket(response: object) -> bool:
    """Return whether a response or error means that the bucket does not exist. A key is not absent then."""
    # s3fs and adlfs keep the response in the cause.
    cause = response.__cause__ if isinstance(response, BaseException) else None
    return any(_NO_BUCKET.search(str(message)) is not None for message in (response, cause))


def concerns_key(response: object) -> bool:
    """Return whether a refusal concerns the requested key, and not the bucket or the credentials."""
    if isinstance(response, bytes) and (
        b"Code>" not in response or b">NoSuchKey<" in response or b">BlobNotFound<" in response
    ):
        return True  # fast path: most chunks of an array may be absent
    message = str(response)
    return not is_missing_bucket(message) and _BAD_CREDENTIALS.search(message) is None


def message_of(error: Exception) -> str:
    """Return the message of an error for people, without the debug output that obstore appends."""
    return redact(str(error).partition("\n\nDebug source:")[0])


# ------------------------------------------------------------------ errors of obstore


_STATUS = re.compile(r"non-2xx status code: (\d\d\d)")
_RETRIES = re.compile(r", after (\d+) retries")


def response_status(error: BaseException | None) -> int | None:
    """Return the HTTP status of the response in an error of obstore; ``None`` without a response."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def refusal_status(error: Exception) -> int:
    """Return 401 or 403 if the service refused a request; 0 for other errors."""
    if "credential provider" in str(error):  # credentials are missing, so no request was made
        return 0
    return _REFUSAL_STATUSES.get(type(error).__name__, 0)


def retry_count(error: Exception) -> int:
    """Return how often obstore repeated the request of an error."""
    match = _RETRIES.search(str(error))
    return int(match[1]) if match else 0
