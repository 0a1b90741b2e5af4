"""`foreword theory`: what it prints, writes and refuses."""

import json

import pytest

import starter
from command import run_apart
from foreword.cli.common import early
from foreword_lab.theory.formulas import expected_tokens

ASKED = ("theory", "--alpha", "0.8", "--cost", "0.05")
PNG = b"\x89PNG"
QUICK = ("--limit-prompts", "2", "--max-tokens", "16", "--device", "cpu", "-t", "0")
PAIR = ("theory", str(starter.target()), "--draft", str(starter.draft()), *QUICK)


def test_formulas_need_no_model(tmp_path):
    (found,) = run_apart([ASKED], tmp_path)
    assert (found.code, found.heavy) == (0, [])
    # Leviathan et al. 2023, table 1: α = 0.8, γ = 5 has 3.69 tokens, 1.63 operations
    assert "5 3.69 1.63×" in found.output
    assert "best γ = 8" in found.output


def test_formulas_as_json(here):
    found = here(*ASKED, "--json", "-")
    figures = json.loads(found.stdout)
    assert figures["rows"][4]["tokens"] == pytest.approx(expected_tokens(0.8, 5))
    assert figures["best_gamma"] == 8
    assert figures["pays_from"] == pytest.approx(0.05)
    surface = figures["surface"]
    row = surface["alpha"].index(0.8)
    column = surface["gamma"].index(8)
    assert surface["speed"][row][column] == pytest.approx(figures["best_speed"])


def test_pair_is_printed_written_and_drawn(here):
    found = here(*PAIR, "--json", "pair.json", "--plot", "pair.png")
    assert found.returncode == 0, found.stderr
    assert "below α" in found.stdout
    figures = json.loads((here.folder / "pair.json").read_text(encoding="utf-8"))
    (heat,) = figures["temperatures"]
    assert f"α {heat['alpha']['mid']:.3f}" in " ".join(found.stdout.split())
    assert (here.folder / "pair.png").read_bytes().startswith(PNG)


def test_formulas_are_drawn(here):
    assert here(*ASKED, "--plot", "formulas.png").returncode == 0
    assert (here.folder / "formulas.png").read_bytes().startswith(PNG)


def test_plot_without_matplotlib_is_refused(here, monkeypatch):
    monkeypatch.setattr(early, "find_spec", lambda name: None)
    found = here(*ASKED, "--plot", "formulas.png")
    assert found.returncode == 2
    assert "pip install 'foreword[plots]'" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--alpha", "0.8"), "'--cost' is missing"),
        (("--cost", "0.1"), "'--alpha' is missing"),
        (("--alpha", "1.2", "--cost", "0.1"), "'--alpha' is a probability, got 1.2"),
        (("--alpha", "0.8", "--cost", "-1"), "'--cost' is a share of a step"),
        ((*ASKED[1:], "--quick"), "cannot use '--quick' with '--alpha'"),
        ((*ASKED[1:], "--dtype", "float32"), "cannot use '--dtype' with '--alpha'"),
        ((str(starter.target()), *ASKED[1:]), "cannot use 'MODEL' with '--alpha'"),
        (("--method", "none"), "it drafts nothing"),
    ],
)
def test_wrong_options_are_refused(here, words, error):
    found = here("theory", *words)
    assert (found.returncode, found.stdout) == (2, "")
    assert error in " ".join(found.stderr.split())
