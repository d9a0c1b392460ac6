"""Credentials for Google Cloud Storage, specified as for gcsfs and used by obstore."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from typing import Any

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock

__all__ = ["RefreshingToken", "token_identity"]

_LIFETIME = timedelta(minutes=6)
"""Reported lifetime of a token. obstore asks again five minutes before the end, and gcsfs refreshes expired ones."""


class RefreshingToken:
    """A token that gcsfs obtains and refreshes. Callable by obstore.

    Two objects with the same arguments are equal, unless a file that they name has changed in between.

    Args:
        token: gcsfs's option ``token``: a file, a dictionary, credentials of google-auth, or a method to obtain them.
        access: gcsfs's option ``access``.
        project: The project, which Google's default credentials must belong to.

    Attributes:
        identity: A value that is equal for equal arguments.
        lasting: Whether the identity means the same user in other processes.
    """

    def __init__(self, token: Any, access: str = "full_control", project: str | None = None) -> None:
        self.token, self.access, self.project = token, access, project
        self.identity = (token_identity(token), access, project)
        self.lasting = token is None or isinstance(token, str | dict)
        self._lock = thread_lock()
        self._credentials: Any = None

    def __call__(self) -> dict[str, Any]:
        """Return the current token.

        Raises:
            ValueError: If the option provides no credentials.
            ImportError: If gcsfs is not installed.
        """
        with self._lock:
            if self._credentials is None:
                self._credentials = _obtain(self.token, self.access, self.project)
            self._credentials.maybe_refresh()
            expiry = datetime.fromtimestamp(clock.wall_time(), UTC) + _LIFETIME
            return {"token": self._credentials.credentials.token, "expires_at": expiry}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefreshingToken) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return RefreshingToken, (self.token, self.access, self.project)


def token_identity(token: Any) -> Hashable:
    """Return a value that is equal for equal options ``token``, unless a file that they name has changed in between."""
    if isinstance(token, dict):
        return json.dumps(token, sort_keys=True, default=repr)
    if isinstance(token, str) and os.path.exists(token):
        return token, os.stat(token).st_mtime_ns
    return token if token is None or isinstance(token, str) else id(token)


def _obtain(token: Any, access: str, project: str | None) -> Any:
    try:
        from gcsfs.credentials import GoogleCredentials  # type: ignore[import-untyped]  # it has none
    except ImportError as error:
        raise ImportError("token= for Google Cloud Storage needs gcsfs: pip install 'zarrasync[gcs]'") from error
    credentials = GoogleCredentials(project, access, token)
    if credentials.credentials is None:
        raise ValueError("the storage option token= provides no credentials")
    return credentials
