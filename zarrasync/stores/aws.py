"""Where people keep their keys for S3: the files that AWS's own tools read and write."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Profile", "profile_in_use"]

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_RENEWED = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")
"""What says that keys have to be fetched from somewhere."""


class Profile:
    """What the files say of a profile.

    Attributes:
        keys: Those that are written there.
        renewed: Whether they have to be fetched from somewhere, or nobody knows the profile: botocore can do that, or say so.
        region: The region, if there is one.
        endpoint: The service's address, if it is not AWS's.
    """

    def __init__(self, name: str, credentials: dict[str, str], settings: dict[str, str]) -> None:
        # Keys come from one file; they belong together.
        found = next((told for told in (credentials, settings) if _KEYS[0] in told), {})
        self.keys = {key: found[key] for key in _KEYS if found.get(key)}
        unknown = name != "default" and not credentials and not settings
        self.renewed = unknown or any(key in told for key in _RENEWED for told in (credentials, settings))
        self.region, self.endpoint = settings.get("region", ""), settings.get("endpoint_url", "")


def profile_in_use() -> Profile:
    """The profile that the environment names, or the default one."""
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    credentials = _sections("AWS_SHARED_CREDENTIALS_FILE", "credentials").get(name, {})
    told = _sections("AWS_CONFIG_FILE", "config")
    settings = told.get(f"profile {name}") or (told.get(name) if name == "default" else None) or {}
    return Profile(name, credentials, settings)


def _sections(variable: str, name: str) -> dict[str, dict[str, str]]:
    """What a file says, by its sections."""
    import configparser

    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser(), encoding="utf-8")
    except (configparser.Error, OSError, UnicodeError, RuntimeError):  # nobody's business here: then there are no keys
        return {}
    return {section: dict(parser[section]) for section in parser.sections()}
