"""Notebooks run from their first cell to their last, and show what they promise."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from foreword import show
from foreword.errors import InvalidRequest
from foreword.types.markup import answer_html

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALLER = {
    "--max-tokens 48 --temperature 0": "--max-tokens 8 --limit 12 --temperature 0",
    "--batch 2 --steps 200": "--batch 1 --steps 6 --prompts 1",
}
"""Part of a cell -> what the test runs."""
GREEN = "#3fb950"


def run(name: str, folder: Path, monkeypatch) -> list[Any]:
    """Return the outputs of all code cells."""
    # the kernel of this environment, whatever kernels a user has
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        for whole, less in SMALLER.items():
            cell.source = cell.source.replace(whole, less)
    NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def said(outputs: list[Any]) -> str:
    return "".join(one.text for one in outputs if one.output_type == "stream")


def html(outputs: list[Any]) -> str:
    shown = (one.get("data", {}).get("text/html", "") for one in outputs)
    return "".join(shown)


def test_the_first_answer_shows_origins_and_a_live_stream(monkeypatch, tmp_path):
    outputs = run("first-answer", tmp_path, monkeypatch)
    assert "True" in said(outputs)
    assert "False" not in said(outputs)
    assert "accepted:" in said(outputs)
    # two answers and one stream; the plain answer has no accepted token
    assert html(outputs).count("<small>") == 3
    assert html(outputs).count(GREEN) > 5
    assert "rounds</small>" in html(outputs)


@pytest.mark.slow
def test_a_drafter_is_trained_and_used(monkeypatch, tmp_path):
    outputs = run("train-your-drafter", tmp_path, monkeypatch)
    assert "True" in said(outputs)
    assert (tmp_path / "draft" / "config.json").is_file()


def test_texts_of_models_are_no_markup():
    shown = answer_html([("<b>", "accepted"), ("&", "bonus"), ("x", "bonus")], "1 < 2")
    assert "&lt;b&gt;" in shown
    assert "&amp;x" in shown
    assert "1 &lt; 2" in shown


def test_a_live_view_needs_a_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(InvalidRequest, match="cannot show an answer"):
        show([])
