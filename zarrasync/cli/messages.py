"""Errors as lines of the command line: with its options, and with paths as the user typed them."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

from zarrasync._util.redact import redact
from zarrasync.errors import ZarrError

_OPTIONS: tuple[tuple[str, str], ...] = (
    (r"the storage option anon=True", "-o anon=true"),
    (r"the storage option allow_targets=\[…\]", "--allow-target URL"),
    (r"\ball_files=True(?!\w)", "--all"),
    (r"\bcopy without all_files\b", "copy without --all"),
    (r"\b(append|decode|overwrite|resume|verify)=True(?!\w)", r"--\1"),
    (r"\binstead of (append|region)\b", r"instead of --\1"),
    (r"\bmode='w'(?!\w)", "--overwrite"),
    (r"\bon_(duplicate|gap|late)='(\w+)'", r"--on-\1 \2"),
    (r"\bon_bad_file='(\w+)'", r"--on-bad-file \1"),
    (r"\breserve='([^']*)'", r"--reserve '\1'"),
    (r"\bingest_files\(\)", "`zarrasync ingest`"),
    (r"\blabels='([^']*)'", r"--labels '\1'"),
    (r"\b(region|concat|engine|convention)='([\w-]+)'", r"--\1 \2"),
    (r"\bregion=\{'[^']*': slice\((\d+), (\d+)\)\}", r"--region \1:\2"),
    (r"\bregion=\{'[^']*': slice\(…\)\}", "--region A:B"),
    (r"\bvariables=\[[^\]]*\]", "--variable NAME"),
    (r"\bsource=FileOptions\(coordinate_tolerance=…\)", "--coordinate-tolerance X"),
    (r"\bsource=FileOptions\(ignore_attributes=\[.*?\]\)", "--ignore-attribute NAME"),
    (r"\bpreprocess=…", "--preprocess MODULE:FUNCTION"),
    (r"\blabels=…", "--labels PATTERN"),
    (r"\blabels=None", "--labels none"),
    (r"\bgroup=…", "--path PATH"),
    (r"\bpath='([^']*)'", r"--path \1"),
    (r"\bengine_options=(\{'filter_by_keys': \{.*?\}\})", r"--engine-option NAME=VALUE for \1"),
    (r"\bpass axes, such as '(\w+)'", r"pass --axes, such as \1"),
    (r"\b(pass|use) zarr_format='?([\w-]+)'?", r"\1 --zarr-format \2"),
    (r"\b(pass|use) zarr_format='?([\w-]+)'?", r"use `zarrasync convert` with the format \2"),
    (r"\bconsolidate_metadata\(\)", "`zarrasync consolidate`"),
)
"""Parameters of Python functions, and the options that replace them if the command has them."""
_SETTING = re.compile(r"\bconfig(?:=\{'(\w+)': '?(\w+)'?\}|\.(\w+))")
_ENCODING = re.compile(r"\bencoding=(\{.*?\}\})")
_NODE = re.compile(r"(?:(?<![\w/])(/[^\s',;]*|'/[^']*') (?:in|of) )?LocalStore\('([^']*)'\)")
"""A directory with a store, with or without a node in front of it."""


def error_line(
    error: BaseException,
    typed: Iterable[str] = (),
    options: Container[str] | None = None,
    secrets: Mapping[str, Any] | None = None,
) -> str:
    """Return an error as one line.

    Args:
        error: The error.
        typed: The arguments of the command, to name local files as the user has typed them.
        options: The options of the command; all commands if ``None``.
        secrets: Values that may contain credentials; see ``secrets_of``.
    """
    if isinstance(error, BaseExceptionGroup):
        return error_line(error.exceptions[0], typed, options, secrets)
    message = redact("; ".join((str(error), *getattr(error, "__notes__", ()))), secrets)
    text = " ".join(message.split()) or type(error).__name__
    if not isinstance(error, ZarrError | OSError | ValueError | TypeError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug shows more)"
    return for_shell(text, typed, options)


def for_shell(text: str, typed: Iterable[str] = (), options: Container[str] | None = None) -> str:
    """Return a message with options instead of parameters, and paths instead of stores.

    Args:
        text: The message.
        typed: The arguments of the command.
        options: The options of the command; all commands if ``None``.
    """

    def as_option(found: re.Match[str], template: str) -> str:
        option = found.expand(template)
        words = re.findall(r"(?<![\w-])--[a-z-]+", option)
        return option if options is None or all(word in options for word in words) else found[0]

    for pattern, template in _OPTIONS:
        text = re.sub(pattern, partial(as_option, template=template), text)
    text = _SETTING.sub(_variable, text)
    text = _ENCODING.sub(lambda found: f"--encoding FILE with {found[1]} in the file".replace("'", '"'), text)
    text = _NODE.sub(_path_of_node, text)
    relative = [word for word in typed if "://" not in word and not os.path.isabs(word)]
    places = {os.path.abspath(word): word.rstrip(os.sep) for word in relative}
    for directory, word in sorted(places.items(), key=lambda place: len(place[0]), reverse=True):
        text = re.sub(rf"(?<![\w/.-]){re.escape(directory)}(?![\w.-])", word.replace("\\", r"\\"), text)
    here = re.escape(os.getcwd().rstrip(os.sep) + os.sep)
    return re.sub(rf"(?<![\w/.-]){here}(?=\w)", "", text) if relative else text


def _path_of_node(found: re.Match[str]) -> str:
    """Return the path of a node of a local store."""
    return f"{found[2]}{(found[1] or '').strip(chr(39))}".rstrip("/") or "/"


def _variable(found: re.Match[str]) -> str:
    """Return the environment variable of a setting."""
    name, value, alone = found.groups()
    variable = f"ZARRASYNC_{(name or alone).upper()}"
    return f"the environment variable {variable}={value.lower()}" if name else variable


def options_of(args: argparse.Namespace) -> Container[str]:
    """Return the options of a command."""
    return {option for action in args.parser._actions for option in action.option_strings}  # noqa: SLF001  # has no public list


def secrets_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command that may contain credentials: storage options by name, and URLs."""
    words = [word for value in vars(args).values() for word in (value if isinstance(value, list) else [value])]
    texts = [word for word in words if isinstance(word, str)]
    pairs = [text.partition("=") for text in texts if "=" in text]
    options = [{name: _leaves(value)} for name, _, value in pairs]
    return {"options": options, "urls": [text for text in texts if "://" in text]}


def _leaves(value: str) -> Any:
    """Return the value of an option, which may be JSON."""
    try:
        return json.loads(value) if value[:1] in ("{", "[") else value
    except ValueError:
        return [value, *re.findall(r"[^\s{}\[\]:,\"']+", value)]


def typed_places(args: argparse.Namespace) -> list[str]:
    """Return the paths and URLs among the arguments of a command."""
    values = [getattr(args, name, None) for name in ("url", "dest")]
    return [word for value in values if value for word in ([value] if isinstance(value, str) else value)]
