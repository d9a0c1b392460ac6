"""Speeds in the README and the documentation are these of the file of measurements."""

from __future__ import annotations

import copy
import importlib
import json
import re

import pytest

from tests.support import ROOT

PAGES = [
    "README.md",
    "docs/comparison.md",
    *(
        str(path.relative_to(ROOT))
        for name in ("measurements", "performance")
        for path in sorted((ROOT / "docs" / name).glob("*.md"))
    ),
]
SPEED = re.compile(r"\d\S* (ms|µs|s|MiB|/s)\b|\d\S* times|\b(faster|slower|fastest|slowest)\b")
WITHOUT_BLOCKS = {"docs/measurements/other.md", "docs/performance/explanation.md"}


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pages")


@pytest.fixture
def data(pages):
    return json.loads(pages.MEASUREMENTS.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_up_to_date(page, pages, data):
    """Run ``python benchmarks/pages.py`` if this fails."""
    text = (ROOT / page).read_text()
    assert pages.render(text, data) == text
    assert bool(pages.BLOCK.search(text)) is (page not in WITHOUT_BLOCKS)


def test_the_picture_is_up_to_date(pages, data):
    assert pages.picture(data) == pages.PICTURE.read_text()
    slower = copy.deepcopy(data)
    slower["remote"]["rows"]["small"]["zarrasync"]["ms"] *= 2
    assert pages.picture(slower) != pages.PICTURE.read_text()


def test_every_block_is_used(pages):
    names = [match[1] for page in pages.PAGES for match in pages.BLOCK.finditer(page.read_text())]
    assert sorted(names) == sorted(pages.BLOCKS)


@pytest.mark.parametrize("number", ["0.26 s", "1,261", "57 MiB", "18 of"])
def test_an_edited_number_is_replaced(number, pages, data):
    text = (ROOT / "README.md").read_text()
    assert number in text
    assert pages.render(text.replace(number, f"9{number}"), data) == text


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md", "docs/performance/index.md"])
def test_no_speed_is_written_by_hand(page, pages):
    text = pages.BLOCK.sub("", (ROOT / page).read_text()).partition("## Development")[0]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert SPEED.search(prose) is None


def test_measured_changes_reach_the_pages(pages, data):
    row = next(row for row in data["local"]["rows"] if (row["workload"], row["task"]) == ("zstd-4m", "read"))
    title = "read: 256 MiB, 4 MiB chunks, zstd-1"
    assert title not in pages.slower(data)
    row["results"]["zarrista"]["ms"], row["best_peer"], row["ratio"] = 88.0, "zarrista", 0.5
    assert f"| {title} | 176 ms | 88 ms (zarrista) | 0.50 |" in pages.slower(data)
    assert "faster in 19 of 86" in " ".join(pages.small_chunks(data).split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["remote"]["rows"]["small"]["tensorstore"].update(ms=200), "Fast without tuning"),
        (
            lambda data: data["updates"]["rows"]["s3-append"]["zarrasync"].update(lost=1),
            "Concurrent writers lose nothing",
        ),
        (lambda data: data["ingest-files"]["rows"]["field"]["zarrista"].update(peak_mib=50), "Little memory"),
    ],
)
def test_a_claim_that_the_numbers_contradict_is_refused(change, words, pages, data):
    worse = copy.deepcopy(data)
    change(worse)
    with pytest.raises(ValueError, match=words):
        pages.strengths(worse)


def test_results_are_published_with_four_digits_and_without_messages(pages, tmp_path):
    harness = importlib.import_module("harness")
    rows = {"a": {"x": {"ms": 1234.5678, "log": ["GET"]}, "y": {"failed": "/tmp/some/path"}}}
    published = harness._public({"rows": rows})
    assert published == {"rows": {"a": {"x": {"ms": 1235.0}, "y": {"failed": True}}}}
    assert json.loads(harness._lines({"section": published})) == {"section": published}
