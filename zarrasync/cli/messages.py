"""Errors as lines of the command line: with its options, and with paths as the user typed them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable

from zarrasync._util.redact import redact
from zarrasync.errors import ZarrError

__all__ = ["error_line", "for_shell", "typed_places"]

_OPTIONS: tuple[tuple[str, str], ...] = (
    (r"storage_options=\{'anon': True\}", "-o anon=true"),
    (r"in storage_options", "in -o options"),
    (r"\ball_files=True(?!\w)", "--all"),
    (r"\b(append|decode)=True(?!\w)", r"--\1"),
    (r"\b(overwrite|resume)=True( or mode='w')?(?!\w)", r"--\1"),
    (r"\bmode='w'(?!\w)", "--overwrite"),
    (r"\bon_(duplicate|gap)='(\w+)'", r"--on-\1 \2"),
    (r"\blabels='([^']*)'", r"--labels '\1'"),
    (r"\b(region|concat|engine)='(\w+)'", r"--\1 \2"),
    (r"\bregion=\{'[^']*': slice\((\d+), (\d+)\)\}", r"--region \1:\2"),
    (r"\bvariables=\[…\]", "--variable NAME"),
)
"""Parameters of Python functions, and the options that replace them."""
_ENCODING = re.compile(r"\bencoding=(\{.*?\}\})")
_NODE = re.compile(r"(?:(?<![\w/])(/[^\s',;]*|'/[^']*') (?:in|of) )?LocalStore\('([^']*)'\)")
"""A directory with a store, with or without a node in front of it."""


def error_line(error: BaseException, typed: Iterable[str] = ()) -> str:
    """Return an error as one line.

    Args:
        error: The error.
        typed: The arguments of the command, to name local files as the user has typed them.
    """
    if isinstance(error, BaseExceptionGroup):
        return error_line(error.exceptions[0], typed)
    message = redact("; ".join((str(error), *getattr(error, "__notes__", ()))))
    text = " ".join(message.split()) or type(error).__name__
    if not isinstance(error, ZarrError | OSError | ValueError | TypeError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug shows more)"
    return for_shell(text, typed)


def for_shell(text: str, typed: Iterable[str] = ()) -> str:
    """Return a message with options instead of parameters, and paths instead of stores.

    Args:
        text: The message.
        typed: The arguments of the command.
    """
    for pattern, option in _OPTIONS:
        text = re.sub(pattern, option, text)
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


def typed_places(args: argparse.Namespace) -> list[str]:
    """Return the paths and URLs among the arguments of a command."""
    values = [getattr(args, name, None) for name in ("url", "dest")]
    return [word for value in values if value for word in ([value] if isinstance(value, str) else value)]
