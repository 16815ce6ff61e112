"""The notebooks run from top to bottom against a served app."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from app.dialects import DialectName
from tests.cluster.serve_cluster import REPOSITORY, ServedApp

pytestmark = pytest.mark.real_model

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(
    real_apps: dict[DialectName, ServedApp], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVEGRAPH_URL", real_apps["pypto-serving"].url)
    notebook = nbformat.read(file, as_version=4)
    kept = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert any(output.get("data", {}).get("image/png") for outputs in kept for output in outputs)
    NotebookClient(notebook, timeout=120).execute()


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
