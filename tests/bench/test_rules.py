"""Comparison of rules: each runs with the same draft budget; passes are counted."""

import json

import pytest

import starter
from foreword.errors import InvalidRequest
from foreword.verify import RULES
from foreword_lab.bench.rules import Row, as_json, compare, entrants, table
from foreword_lab.bench.run import Options
from foreword_train.report.interval import Interval

OPTIONS = Options(
    target=str(starter.target()),
    draft=str(starter.draft()),
    temperatures=(1.0,),
    limit_prompts=3,
    max_tokens=12,
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare(OPTIONS, (6,))


def test_every_rule_is_run(rows):
    assert {row.name for row in rows} == set(RULES) | {"match, chain"}
    assert {(row.temperature, row.budget) for row in rows} == {(1.0, 6)}
    assert [
        rule.trees for name, rule in entrants().items() if name.endswith("chain")
    ] == [False]


def test_each_pass_emits_between_one_token_and_the_budget(rows):
    for row in rows:
        one = row.tokens_per_pass
        assert 1 <= one.low <= one.mid <= one.high <= 7
    assert sum(row.tokens_per_pass.mid for row in rows) > 1.5 * len(rows)


def test_same_options_count_the_same_passes(rows):
    assert compare(OPTIONS, (6,)) == rows


def test_json_is_plain_and_the_best_is_bold(printed):
    rows = [
        Row(name, 1.0, b, Interval(1.0, mid, 3.0))
        for name, mid in (("one", 1.25), ("two", 2.5))
        for b in (4, 8)
    ]
    found = json.loads(json.dumps(as_json(rows, OPTIONS)))
    assert found["rows"][0] == {
        "name": "one",
        "temperature": 1.0,
        "budget": 4,
        "tokens_per_pass": [1.0, 1.25, 3.0],
    }
    assert found["settings"]["limit_prompts"] == 3
    shown = printed(table(rows), 80, force_terminal=True, color_system="standard")
    assert "\x1b[1m2.50" in shown
    assert "1.25" in shown
    assert "\x1b[1m1.25" not in shown


@pytest.mark.parametrize(
    ("options", "budgets", "message"),
    [
        (OPTIONS, (), "'budgets' must be"),
        (OPTIONS, (0,), "'budgets' must be"),
        (OPTIONS, (65,), "'budgets' must be"),
        (Options(max_tokens=0), (4,), "'max_tokens' must be at least 1"),
        (Options(target="somewhere"), (4,), "Give draft="),
        (Options(inflate="llama-350m"), (4,), "inflate would have no effect"),
        (
            Options(methods=("lm",), plot="x.png"),
            (4,),
            "methods and plot would have no effect",
        ),
        (
            Options(max_tokens=4000, limit_prompts=1),
            (4,),
            "exceed the target's context",
        ),
    ],
)
def test_bad_options_are_refused_before_any_work(options, budgets, message):
    with pytest.raises(InvalidRequest, match=message):
        compare(options, budgets)
