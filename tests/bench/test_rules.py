"""Rules beside each other: each is run, on as many guesses, and passes are what is
counted.
"""

import json

import pytest
from rich.console import Console

from foreword.bench.rules import Row, as_json, compare, entrants, table
from foreword.bench.run import Options
from foreword.bench.stats import Interval
from foreword.errors import InvalidRequest
from foreword.verify import RULES

OPTIONS = Options(temperatures=(1.0,), limit_prompts=3, max_tokens=16)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare(OPTIONS, (6,))


def test_every_rule_is_run(rows):
    assert {row.name for row in rows} == set(RULES) | {"match, chain"}
    assert {(row.temperature, row.budget) for row in rows} == {(1.0, 6)}
    assert [
        rule.trees for name, rule in entrants().items() if name.endswith("chain")
    ] == [False]


def test_a_pass_writes_a_token_at_least_and_guesses_add_to_it(rows):
    for row in rows:
        assert (
            1
            <= row.tokens_per_pass.low
            <= row.tokens_per_pass.mid
            <= row.tokens_per_pass.high
            <= 7
        )
    assert sum(row.tokens_per_pass.mid for row in rows) > 1.5 * len(rows)


def test_the_same_run_counts_the_same_passes(rows):
    assert compare(OPTIONS, (6,)) == rows


def test_figures_are_plain_and_the_best_stands_out():
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
    console = Console(width=80, force_terminal=True, color_system="standard")
    with console.capture() as shown:
        console.print(table(rows))
    assert "\x1b[1m2.50" in shown.get()
    assert "1.25" in shown.get()
    assert "\x1b[1m1.25" not in shown.get()


@pytest.mark.parametrize(
    ("options", "budgets", "said"),
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
def test_what_cannot_be_compared_is_said_before_any_work(options, budgets, said):
    with pytest.raises(InvalidRequest, match=said):
        compare(options, budgets)
