"""The reference of the command line contains the options of the parser."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator

from tests.support import ROOT
from zarrasync.cli import make_parser
from zarrasync.cli.ingest_plans import make_plan_parser

PAGE = ROOT / "docs" / "guides" / "command-reference.md"
HEAD = """# Command reference

All commands and their options, as `zarrasync COMMAND --help` prints them. [Command line](command-line.md) explains them with examples.

Every command has `--debug`, which shows the traceback of an error, and `-h`. Commands for stores have `-o NAME=VALUE`, a storage option.
"""
EVERYWHERE = {"-h", "--debug", "-o"}


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield all commands below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                below = list(commands_of(command))
                yield from below or [command]


def all_commands() -> list[argparse.ArgumentParser]:
    plans = list(commands_of(make_plan_parser()))
    found = []
    for command in commands_of(make_parser()):
        found.append(command)
        if command.prog == "zarrasync ingest":
            found += plans
    return found


def name_of(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return str(value)
    name = next((text for text in action.option_strings if text.startswith("--")), action.option_strings[0])
    return name if action.nargs == 0 else f"{name} {value}"


def reference() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for command in all_commands():
        rows = [
            f"| `{name_of(action)}` | {action.help or ''} |".replace("|", "\\|")
            .replace("\\| ", "| ")
            .replace(" \\|", " |")
            for action in command._actions
            if action.help != argparse.SUPPRESS and not EVERYWHERE & set(action.option_strings)
        ]
        title = command.prog.removeprefix("zarrasync ")
        parts.append(
            f"## {title}\n\n{command.description}\n\n| argument | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def test_the_page_contains_all_options():
    """``ZARRASYNC_WRITE=1`` rewrites the page for review."""
    if os.environ.get("ZARRASYNC_WRITE"):
        PAGE.write_text(reference())
    assert PAGE.read_text() == reference(), "run this test with ZARRASYNC_WRITE=1"


def test_the_guide_names_options_that_exist():
    """The guides use no option that no command has."""
    known = {text for command in all_commands() for action in command._actions for text in action.option_strings}
    for page in ("command-line.md", "archive-stories.md", "many-files.md", "pyramids.md"):
        text = (PAGE.parent / page).read_text()
        lines = [line for line in text.splitlines() if "zarrasync " in line or line.startswith("| `-")]
        used = {option for line in lines for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
        assert used - known == set(), page


def test_every_option_has_help():
    for command in all_commands():
        for action in command._actions:
            assert action.help, (command.prog, action.option_strings or action.dest)
