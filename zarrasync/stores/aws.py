"""Where people keep their keys for S3: the files that AWS's own tools read and write."""

from __future__ import annotations

import configparser
import os
from pathlib import Path

__all__ = ["stored_settings"]

_ELSEWHERE = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_")
"""Variables that come before the files, or parts of their names."""
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_RENEWED = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")
"""What says that keys have to be fetched from somewhere."""


def stored_settings() -> dict[str, str] | None:
    """Keys and the region of the profile that is in use; ``None`` if the profile takes botocore to get keys."""
    if any(name.startswith(_ELSEWHERE) for name in os.environ):
        return {}
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    told = {
        **_section("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        **_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    }
    found = {name: told[name] for name in _KEYS if told.get(name)}
    if any(name in told for name in _RENEWED):
        return None
    if told.get("region"):
        found["aws_region"] = told["region"]
    return found


def _section(variable: str, name: str, section: str) -> dict[str, str]:
    """What a file says of a profile."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(os.environ.get(variable) or f"~/.aws/{name}").expanduser(), encoding="utf-8")
    except (configparser.Error, OSError, UnicodeError, RuntimeError):  # nobody's business here: then there are no keys
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}
