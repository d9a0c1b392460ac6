"""The pages are short enough to be read, and their code fits into a column of text."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

PAGES = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
APPENDIX = {
    "docs/api.md",
    "docs/conversions.md",
    "docs/errors.md",
    "docs/guides/command-reference.md",
    "docs/interop.md",
    "docs/names.md",
}
"""Generated pages and references, which nobody reads from the beginning to the end, as the tables in docs/measurements."""
MOST_WORDS = 35_000
FENCE = re.compile(r"^```(python|sh|yaml|ini|nginx|dockerfile)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def is_appendix(page):
    name = page.relative_to(ROOT).as_posix()
    return name in APPENDIX or name.startswith("docs/measurements/")


def test_the_pages_are_short():
    words = {page: len(page.read_text().split()) for page in PAGES if not is_appendix(page)}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda item: -item[1])[:10]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT).with_suffix("")))
def test_code_fits_without_scrolling(page):
    lines = [line for _, code in FENCE.findall(page.read_text()) for line in code.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


def test_every_page_of_the_appendix_exists():
    assert {name for name in APPENDIX if not (ROOT / name).exists()} == set()
