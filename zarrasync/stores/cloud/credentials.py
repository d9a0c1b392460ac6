"""Credentials for S3 from the files of AWS's own tools, and for Google Cloud Storage, specified as for gcsfs."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock

_KEY_NAMES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_REFRESHING = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")
"""Settings of profiles whose keys are fetched from somewhere."""
_LIFETIME = timedelta(minutes=6)
"""Reported lifetime of keys and tokens. obstore asks again five minutes before the end, and botocore and gcsfs refresh
expired ones."""


class _Refreshing:
    """Credentials that another package fetches and refreshes. Objects with equal arguments are equal.

    Args:
        *arguments: The arguments of the class.
        identity: A value that is equal for equal arguments.
        lasting_identity: Whether the identity means the same user in other processes.
    """

    def __init__(self, *arguments: Any, identity: Hashable, lasting_identity: bool) -> None:
        self._arguments, self.identity, self.lasting_identity = arguments, identity, lasting_identity
        self._lock = thread_lock()
        self._credentials: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


class RefreshingKeys(_Refreshing):
    """Keys that botocore fetches for a profile: for a role, by single sign-on, from a program. Callable by obstore.

    Args:
        profile: The profile's name.
        settings: The profile's settings in the files. Keys of profiles with other settings are not equal.
    """

    def __init__(self, profile: str, settings: tuple[tuple[str, str], ...]) -> None:
        super().__init__(profile, settings, identity=(profile, settings), lasting_identity=True)
        self.profile = profile

    def __call__(self) -> dict[str, Any]:
        """Return the current keys.

        Raises:
            ValueError: If the profile has no keys.
            botocore.exceptions.BotoCoreError: If they cannot be fetched.
            ImportError: If botocore is not installed.
        """
        with self._lock:
            if self._credentials is None:
                self._credentials = _session(self.profile).get_credentials()
            if self._credentials is None:
                raise ValueError(f"the profile {self.profile!r} has no keys")
            keys = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.fromtimestamp(clock.wall_time(), UTC) + _LIFETIME,
        }


class Profile(NamedTuple):
    """A profile of AWS's configuration files.

    Attributes:
        name: The profile's name.
        credentials: Its section of the credentials file.
        settings: Its section of the config file.
    """

    name: str
    credentials: dict[str, str]
    settings: dict[str, str]

    @property
    def keys(self) -> dict[str, str]:
        """The keys in the files, all from the same file."""
        section = next((section for section in (self.credentials, self.settings) if _KEY_NAMES[0] in section), {})
        return {name: section[name] for name in _KEY_NAMES if section.get(name)}

    @property
    def refreshing_keys(self) -> RefreshingKeys | None:
        """Keys that must be fetched, if the profile is set up that way or does not exist (which they report)."""
        sections = (self.credentials, self.settings)
        unknown = self.name != "default" and not any(sections)
        if unknown or any(name in section for name in _REFRESHING for section in sections):
            return RefreshingKeys(self.name, (*self.credentials.items(), *self.settings.items()))
        return None


def read_profile(name: str = "") -> Profile:
    """Read a profile from the files.

    Args:
        name: The profile's name. By default the one in ``AWS_PROFILE``, or else "default".
    """
    name = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    config = _read_sections("AWS_CONFIG_FILE", "config")
    settings = config.get(f"profile {name}") or (config.get(name) if name == "default" else None) or {}
    return Profile(name, _read_sections("AWS_SHARED_CREDENTIALS_FILE", "credentials").get(name, {}), settings)


def _read_sections(variable: str, name: str) -> dict[str, dict[str, str]]:
    """Return the sections of a file. Files that are absent or cannot be read have none."""
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser(), encoding="utf-8")
    except (configparser.Error, OSError, UnicodeError, RuntimeError):
        return {}
    return {section: dict(parser[section]) for section in parser.sections()}


def _session(profile: str) -> Any:
    try:
        from botocore.session import Session
    except ImportError as error:
        raise ImportError(f"keys of the profile {profile!r} need botocore: pip install 'zarrasync[cloud]'") from error
    return Session(profile=profile)


class RefreshingToken(_Refreshing):
    """A token that gcsfs obtains and refreshes. Callable by obstore.

    The identity depends on the time of a file that the arguments name.

    Args:
        token: gcsfs's option ``token``: a file, a dictionary, credentials of google-auth, or a method to obtain them.
        access: gcsfs's option ``access``.
        project: The project, which Google's default credentials must belong to.
    """

    def __init__(self, token: Any, access: str = "full_control", project: str | None = None) -> None:
        is_lasting = token is None or isinstance(token, str | dict)
        identity = (token_identity(token), access, project)
        super().__init__(token, access, project, identity=identity, lasting_identity=is_lasting)

    def __call__(self) -> dict[str, Any]:
        """Return the current token.

        Raises:
            ValueError: If the option provides no credentials.
            ImportError: If gcsfs is not installed.
        """
        with self._lock:
            if self._credentials is None:
                self._credentials = _obtain(*self._arguments)
            self._credentials.maybe_refresh()
            expiry = datetime.fromtimestamp(clock.wall_time(), UTC) + _LIFETIME
            return {"token": self._credentials.credentials.token, "expires_at": expiry}


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
