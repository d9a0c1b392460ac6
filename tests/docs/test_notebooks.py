"""The notebooks of the documentation run, from the first cell to the last."""

from __future__ import annotations

import pytest

from tests.support import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("cmap")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# Kernels leave files and sockets open.
pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before committing"
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert not any(out.output_type == "stream" and out.name == "stderr" and "Error" in out.text for out in shown)
    html = "".join(out.data.get("text/html", "") for out in shown if "data" in out)
    if path.stem in ("cloud", "ingestion", "serving"):
        assert "za-card" in html
