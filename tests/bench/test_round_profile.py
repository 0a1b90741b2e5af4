"""The profile of a round: both ways of cutting it add up to the whole round."""

from dataclasses import replace

import pytest

from foreword.types import Clock
from foreword_lab.bench.decoding import Decoding
from foreword_lab.bench.records import Round, Trial
from foreword_lab.bench.report import Report, by_source, regrets, rows
from foreword_lab.bench.report.by_source import table_of
from foreword_lab.bench.round_profile import BY_MODEL, BY_STEP, parts, table


def a_round(
    seconds: float, target: float, draft: float, *, reading: bool = False
) -> Round:
    clock = Clock(
        propose=0.1 * seconds,
        score=0.6 * seconds,
        verify=0.1 * seconds,
        commit=0.1 * seconds,
    )
    return Round(2, 3, 1, seconds, clock, target, draft, reading)


@pytest.fixture
def report() -> Report:
    seen = (
        a_round(9.0, 8.0, 0.0, reading=True),
        a_round(0.01, 0.005, 0.001),
        a_round(0.03, 0.015, 0.003),
    )
    trials = {"a": [Trial([1, 2, 3, 4], 0.04, 3, seen)]}
    unseen = {"a": [Trial([1, 2, 3, 4], 0.1, 4)]}
    found = rows({("plain", 0.0): trials, ("transformers.generate", 0.0): unseen})
    return Report({}, {}, "a model", 0, found, {})


@pytest.fixture
def decoding(report) -> Decoding:
    assert report.rows[0].decoding is not None
    return report.rows[0].decoding


def test_both_cuts_add_up_to_the_round(decoding):
    found = parts(decoding)
    # the round that read the prompt is left out
    assert decoding.round_seconds == pytest.approx(0.02)
    for cut in (BY_STEP, BY_MODEL):
        assert sum(found[part] for part in cut) == pytest.approx(0.02)
    assert found["score"] == pytest.approx(0.012)
    assert (found["target"], found["draft"], found["outside"]) == pytest.approx(
        (0.01, 0.002, 0.008)
    )


def test_table_shows_milliseconds_and_shares(report, printed):
    shown = printed(table(report))
    assert "12.00  60%" in shown
    assert "2.00  10%" in shown
    assert "plain" in shown
    assert "transformers.generate" not in shown


def test_table_says_by_which_methods_a_text_was_written(printed):
    chosen = [
        replace(a_round(0.01, 0.005, 0.001), speeds={"lm": speed, "none": 1.0})
        for speed in (1.5, 2.5)
    ]
    by_method = {"none": 1, "lm": 3}
    trial = Trial([1, 2, 3, 4], 0.02, 2, tuple(chosen), by_method=by_method)
    plain = {"a": [Trial([1, 2, 3, 4], 0.1, 4)]}
    found = rows({("plain", 0.0): plain, ("auto(lm)", 0.0): {"a": [trial, trial]}})
    shown = " ".join(printed(table(Report({}, {}, "a model", 0, found, {}))).split())
    assert "auto(lm), T = 0: tokens by method" in shown
    assert "lm 6 (expected 2.00), none 2 (expected 1.00)" in shown


def trials(*seconds: float) -> dict[str, list[Trial]]:
    """Return a trial of each of three prompts, of two kinds."""
    names = ("code/1", "code/2", "chat/1")
    return {
        name: [Trial([1, 2, 3, 4], one, None)]
        for name, one in zip(names, seconds, strict=True)
    }


def test_regret_is_the_time_that_the_best_row_would_have_saved():
    results = {
        ("plain", 0.0): trials(4.0, 4.0, 1.0),
        ("lm", 0.0): trials(1.0, 1.0, 2.0),
        ("oracle", 0.0): trials(0.1, 0.1, 0.1),
        ("auto(lm, ngram)", 0.0): trials(1.25, 1.25, 1.5),
        ("auto(lm, ngram)", 1.0): trials(1.0, 1.0, 1.0),
    }
    (found,) = regrets(results)
    assert (found.name, found.temperature, found.best) == ("auto(lm, ngram)", 0.0, "lm")
    low, mid, high = found.share
    assert mid == pytest.approx(0.0)
    assert low <= mid <= high
    assert low < high
    # the fastest of each source: lm for code, plain for chat
    assert found.by_source == pytest.approx({"code": 0.2, "chat": 1 / 3})


def test_speeds_are_told_by_kind_of_prompt(printed):
    results = {
        ("plain", 0.0): trials(4.0, 4.0, 1.0),
        ("lm", 0.0): trials(1.0, 2.0, 2.0),
        ("ngram", 0.0): trials(3.0, 3.0, 1.5),
        ("transformers.generate", 0.0): trials(8.0, 8.0, 2.0),
    }
    code, chat = by_source(results)
    assert (code.source, code.prompts, code.fastest) == ("code", 2, "lm")
    assert (chat.source, chat.prompts, chat.fastest) == ("chat", 1, "plain")
    assert set(code.speedups) == {"lm", "ngram"}
    assert code.speedups["lm"].mid == pytest.approx(8 / 3)
    assert code.speedups["lm"].low < 8 / 3 < code.speedups["lm"].high
    assert "2.67 (2.00–4.00)" in printed(table_of((code, chat)))
    coded = {key: {"code/1": one["code/1"]} for key, one in results.items()}
    assert by_source(coded) == ()
    assert table_of(()) is None
