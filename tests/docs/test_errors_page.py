"""The page of errors documents every error class, with examples that run and messages that help."""

from __future__ import annotations

import re

import pytest

from tests.support import errors_page

WHERE = re.compile(
    r"/data/(x\.zarr|empty\.nc)|\b\w*Store\(|\baxis \d|'[^']+' is not a valid|^[a-z]+: unknown|\bshape \(\d|^Zarr format \d|\bthe URL '"
    r"|\bindex \d+ of '|\bthe coordinate '"
)
"""Where an operation failed: the store, the file, the axis, the name, the parameter, the shape, the format, or the value."""
REMEDY = re.compile(
    r"Did you mean|[;:] (pass|use|open|read|fetch|install|restore|write|check|did you mean|let one|keys must)\b"
    r"|; .*\bpass\b|expected an? "
)
"""What to do, as an imperative, a suggestion, or the requirement that was not met."""
WITHOUT_REMEDY = {"StoreError": "the operating system gives the reason, which may be any"}


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    """Return the message of each class's example."""
    return {cls.__name__: errors_page.run_example(cls) for cls in errors_page.classes()}


def test_every_class_has_an_example() -> None:
    assert {cls.__name__ for cls in errors_page.classes()} == set(errors_page.EXAMPLES)


def test_the_page_is_up_to_date() -> None:
    """Run ``python -m tests.support.errors_page`` if this fails."""
    assert errors_page.PAGE.read_text() == errors_page.render()


def test_messages_name_the_location(messages: dict[str, str]) -> None:
    assert not {name: message for name, message in messages.items() if not WHERE.search(message)}


def test_messages_contain_a_remedy(messages: dict[str, str]) -> None:
    assert {name for name, message in messages.items() if not REMEDY.search(message)} == set(WITHOUT_REMEDY)
