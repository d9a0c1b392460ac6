"""The code in the documentation runs; the examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?```python\n(.*?)```", re.DOTALL)
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.stem)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, in an empty directory."""
    blocks = [code for skipped, code in BLOCK.findall(page.read_text()) if not skipped]
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["zarrasync", "zarrasync.sync", "zarrasync.config", "zarrasync.codecs"])
def test_docstring_examples(module):
    import doctest
    import importlib

    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


@pytest.mark.slow
def test_quickstart(tmp_path):
    pytest.importorskip("global_land_mask")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Done in" in done.stdout
    assert done.stdout.count("as in the source") == 4
    assert (tmp_path / "land.png").stat().st_size > 50_000
