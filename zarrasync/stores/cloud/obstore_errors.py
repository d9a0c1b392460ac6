"""HTTP status and number of retries of failed requests, parsed from errors of obstore."""

from __future__ import annotations

import re

__all__ = ["refusal_status", "response_status", "retry_count"]

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
