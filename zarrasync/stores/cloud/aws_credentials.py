"""Where people keep their keys for S3: the files that AWS's own tools read and write."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Profile", "RenewedKeys", "read_profile"]

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_RENEWED = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")
"""What says that keys have to be fetched from somewhere."""


_HOLD = timedelta(minutes=6)
"""How long keys are said to hold: obstore asks again five minutes before the end, and botocore renews those that lapse."""


class Profile(NamedTuple):
    """What the files say of a profile.

    Attributes:
        name: Its name.
        credentials: What the file of keys says.
        settings: What the file of settings says.
    """

    name: str
    credentials: dict[str, str]
    settings: dict[str, str]

    @property
    def keys(self) -> dict[str, str]:
        """The keys that are written there."""
        # They come from one file; they belong together.
        found = next((told for told in (self.credentials, self.settings) if _KEYS[0] in told), {})
        return {key: found[key] for key in _KEYS if found.get(key)}

    @property
    def renewed(self) -> RenewedKeys | None:
        """Where keys come from that have to be fetched; it says, too, that nobody knows the profile."""
        unknown = self.name != "default" and not self.credentials and not self.settings
        if unknown or any(key in told for key in _RENEWED for told in (self.credentials, self.settings)):
            return RenewedKeys(self.name, (*self.credentials.items(), *self.settings.items()))
        return None


class RenewedKeys:
    """Keys that botocore fetches for a profile: of a role, of single sign-on, of a program. Can be called by obstore.

    Args:
        profile: The profile's name.
        told: What the files said of it; keys of a profile that was changed are others.
    """

    def __init__(self, profile: str, told: tuple[tuple[str, str], ...]) -> None:
        self.profile, self.told = profile, told
        self._lock = threading.Lock()
        self._found: Any = None

    def __call__(self) -> dict[str, Any]:
        """The keys of now.

        Raises:
            botocore.exceptions.BotoCoreError: If there are none.
            ImportError: If botocore is not installed.
        """
        with self._lock:
            if self._found is None:
                self._found = _session(self.profile).get_credentials()
            if self._found is None:
                raise ValueError(f"the profile {self.profile!r} leads to no keys")
            keys = self._found.get_frozen_credentials()
        until = datetime.now(UTC) + _HOLD
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": until,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RenewedKeys) and (other.profile, other.told) == (self.profile, self.told)

    def __hash__(self) -> int:
        return hash((self.profile, self.told))

    def __reduce__(self) -> tuple[Any, ...]:
        return RenewedKeys, (self.profile, self.told)


def _session(profile: str) -> Any:
    try:
        from botocore.session import Session
    except ImportError as error:
        raise ImportError(f"keys of the profile {profile!r} need botocore: pip install 'zarrasync[cloud]'") from error
    return Session(profile=profile)


def read_profile(name: str = "") -> Profile:
    """What the files say of a profile; of the one that the environment names, or the default one, if none is named."""
    name = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    told = _sections("AWS_CONFIG_FILE", "config")
    settings = told.get(f"profile {name}") or (told.get(name) if name == "default" else None) or {}
    return Profile(name, _sections("AWS_SHARED_CREDENTIALS_FILE", "credentials").get(name, {}), settings)


def _sections(variable: str, name: str) -> dict[str, dict[str, str]]:
    """What a file says, by its sections."""
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser(), encoding="utf-8")
    except (configparser.Error, OSError, UnicodeError, RuntimeError):  # nobody's business here: then there are no keys
        return {}
    return {section: dict(parser[section]) for section in parser.sections()}
