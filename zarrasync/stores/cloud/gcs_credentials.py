"""Credentials for Google Cloud Storage as gcsfs takes them, for who speaks to it in another way."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["RenewedToken"]

_HOLD = timedelta(minutes=6)
"""How long a token is said to hold: obstore asks again five minutes before the end, and gcsfs renews those that lapse."""


class RenewedToken:
    """What ``token=`` means to gcsfs: a file, a dictionary, credentials of google-auth, or how to find some.

    Can be called by obstore. Two of the same words are equal, unless a file that they name was changed between.

    Args:
        token: What the user gave.
        access: What it is to allow, in gcsfs's words.
        project: The project, which Google's default credentials have to be of.
    """

    def __init__(self, token: Any, access: str = "full_control", project: str | None = None) -> None:
        self.token, self.access, self.project = token, access, project
        self._identity = (_identity(token), access, project)
        self._lock = threading.Lock()
        self._found: Any = None

    def __call__(self) -> dict[str, Any]:
        """The token of now.

        Raises:
            ValueError: If what was given leads to no credentials.
            ImportError: If gcsfs is not installed.
        """
        with self._lock:
            if self._found is None:
                self._found = _credentials(self.token, self.access, self.project)
            self._found.maybe_refresh()
            return {"token": self._found.credentials.token, "expires_at": datetime.now(UTC) + _HOLD}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RenewedToken) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return RenewedToken, (self.token, self.access, self.project)


def _identity(token: Any) -> Hashable:
    """What tells tokens apart."""
    if isinstance(token, dict):
        return json.dumps(token, sort_keys=True, default=repr)
    if isinstance(token, str) and os.path.exists(token):
        return token, os.stat(token).st_mtime_ns
    return token if isinstance(token, str) else id(token)


def _credentials(token: Any, access: str, project: str | None) -> Any:
    try:
        from gcsfs.credentials import GoogleCredentials  # type: ignore[import-untyped]  # it has none
    except ImportError as error:
        raise ImportError("token= for Google Cloud Storage needs gcsfs: pip install 'zarrasync[gcs]'") from error
    found = GoogleCredentials(project, access, token)
    if found.credentials is None:
        raise ValueError("what token= says leads to no credentials")
    return found
