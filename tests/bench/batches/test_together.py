"""Batches of prompts: a tiny run has every row, and every text is plain decoding's."""

import json

import pytest

import starter
from foreword.errors import InvalidRequest
from foreword_lab.bench.batches.together import TURNS, Row, Together, together
from foreword_lab.bench.peers import hf
from foreword_lab.bench.run import Options
from foreword_train.report.interval import Interval

METHODS = ("ngram", "lm", "oracle")


@pytest.fixture(scope="module")
def found(progress) -> Together:
    options = Options(
        target=str(starter.target()),
        draft=str(starter.draft()),
        limit_prompts=2,
        max_tokens=6,
        methods=METHODS,
        budget="heuristic",
        temperatures=(0.0, 1.0),
    )
    return together(options, (1, 2), progress.append, beside=True)


def test_each_method_has_rows_at_each_batch_size_and_temperature(found):
    keys = [(row.temperature, row.beside, row.name, row.batch) for row in found.rows]
    assert keys == [
        (heat, beside, name, batch)
        for heat in (0, 1)
        for beside in (False, True)
        for name in ("plain", "ngram", "lm")
        for batch in (1, 2)
    ]
    for row in found.rows:
        assert row.tokens_per_second > 0
        assert 0 < row.over_plain.low <= row.over_plain.mid <= row.over_plain.high
        assert (row.over_plain.high == 1) == (row.name == "plain")


def test_drafts_change_no_text(found):
    assert all(row.same_text for row in found.rows)
    assert all(
        0 < row.accepted <= row.drafted for row in found.rows if row.name == "lm"
    )
    assert not any(row.drafted for row in found.rows if row.name == "plain")


def test_entries_without_batches_are_left_out(found, progress):
    assert set(found.exclusions) == {hf.GENERATE, "oracle"}
    assert "oracle is left out: it answers one request at a time here" in progress
    assert sum(line.startswith(f"turn {TURNS} of {TURNS}: ") for line in progress) == 8


def test_json_and_table_hold_every_figure(found, printed):
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert {"machine", "versions", "target", "settings", "rows", "exclusions"} | {
        "kept_gains"
    } == set(written)
    assert written["settings"]["batches"] == [1, 2]
    assert [len(row["over_plain"]) for row in written["rows"]] == [3] * 24
    shown = printed(found.table())
    lines = [line.split() for line in shown.splitlines()]
    assert [line[:3] for line in lines if line[-1:] == ["yes"]] == [
        [name, heat, beside]
        for heat in "01"
        for beside in ("nothing", "a")
        for name in ("plain", "ngram", "lm")
    ]
    assert "left out: oracle" in shown


def test_empty_batch_is_refused_before_any_work():
    with pytest.raises(InvalidRequest, match="each needs at least one sequence"):
        together(Options(), (4, 0))


def row(mid: float, *, beside: bool = False, name: str = "lm") -> Row:
    return Row(
        name=name,
        temperature=0,
        beside=beside,
        batch=4,
        tokens_per_second=100,
        over_plain=Interval(mid - 0.01, mid, mid + 0.01),
        drafted=9,
        accepted=5,
        same_text=True,
    )


def test_row_is_held_against_the_limit_of_its_place():
    least = (0.98, 0.95)
    assert row(0.97).below(least)
    assert not row(0.99).below(least)
    assert not row(0.97, beside=True).below(least)
    assert row(0.94, beside=True).below(least)
    assert row(0.97, beside=True).below((0.98,)), "one limit is of both"
    assert not row(0.5, name="plain").below(least)
    assert row(0.94, beside=True).shown == (
        "lm at temperature 0 in batches of 4, beside a busy program: 0.94 (0.93–0.95)"
    )


def test_gain_beside_another_program_is_a_share_of_the_gain_alone():
    rows = (row(2.0), row(1.75, beside=True), row(1.02, name="ngram"))
    one = Together({}, {}, "", {}, (*rows, row(0.9, beside=True, name="ngram")))
    assert one.kept_gains() == [0.75], "a gain of 2 % is noise"
