"""Metrics and intervals against counting by hand; the card and picture show them."""

import numpy as np
import pytest

from foreword.types.stats import Stats
from foreword_train.log import Row
from foreword_train.report.card import card
from foreword_train.report.measure import spread
from foreword_train.report.metrics import ALL, TrainReport, interval, summary
from foreword_train.report.plot import draw


def stats(tokens: int, rounds: int, drafted: list[int], accepted: list[int]) -> Stats:
    return Stats(tokens=tokens, rounds=rounds, drafted_at=drafted, accepted_at=accepted)


ANSWERS = [
    stats(10, 5, [5, 5, 4], [4, 2, 0]),
    stats(6, 6, [6], [0]),
    stats(12, 3, [3, 3, 3], [3, 3, 3]),
]


def test_metrics_are_sums_over_answers():
    found = summary("sums", 0.0, ANSWERS, depth=4)
    assert found.tokens_per_pass.mid == pytest.approx(28 / 14)
    assert [value.mid for value in found.acceptance] == pytest.approx(
        [7 / 14, 5 / 8, 3 / 7]
    )
    for value in (found.tokens_per_pass, *found.acceptance):
        assert value.low <= value.mid <= value.high


def test_interval_covers_the_truth_in_95_percent():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        kept = generator.binomial(8, 0.6, size=60).astype(float)
        found = interval(kept, np.full(60, 8.0), seed=trial)
        hits += found.low <= 0.6 <= found.high
    assert 0.90 <= hits / 200 <= 0.99


def test_one_answer_has_no_spread():
    found = summary("one", 0.0, ANSWERS[:1], depth=3)
    assert found.tokens_per_pass.low == found.tokens_per_pass.high == 2


def test_prompts_come_in_turn_from_every_source():
    prompts = [("a", [1]), ("a", [2]), ("a", [3]), ("b", [4]), ("c", [5]), ("c", [6])]
    assert spread(prompts, 4) == [("a", [1]), ("b", [4]), ("c", [5]), ("a", [2])]
    assert len(spread(prompts, 100)) == 6
    assert spread([], 3) == []


def report(**changes) -> TrainReport:
    metrics = tuple(
        summary(name, heat, answers, depth=3)
        for heat in (0.0, 1.0)
        for name, answers in ((ALL, ANSWERS), ("sums", ANSWERS[:1]))
    )
    facts = dict(
        target="org/target",
        settings={"on_policy": 0.5, "seed": 7},
        versions={"torch": "9"},
        parameters=1234,
    )
    return TrainReport(
        **facts
        | dict(learnt=5678, held_out={"acceptance": 0.625}, metrics=metrics)
        | changes
    )


def test_card_shows_the_report():
    text = card(report(), picture="acceptance.png")
    for words in (
        "# A drafter for `org/target`",
        "1,234 parameters",
        "5,678 tokens",
        "acceptance 0.625",
        "- seed: 7",
    ):
        assert words in text
    assert 'LLM("org/target", draft=' in text
    assert "](acceptance.png)" in text
    assert "- on policy: 0.5" in text
    rows = [line for line in text.splitlines() if line.startswith("| all |")]
    assert len(rows) == 2
    assert rows[0].startswith("| all | 3 | 2.00 (")
    assert "| sums | 1 | 2.00 | 0.80 |" in text


def test_card_without_metrics_leaves_them_out():
    text = card(report(metrics=(), held_out={}, target=None))
    assert "## Acceptance" not in text
    assert "acceptance.png" not in text
    assert "LLM(draft=" in text
    assert "## Training" in text


def test_the_picture_is_drawn(tmp_path):
    rows = [
        Row(step=0, held_out={"acceptance": 0.1, "agreement": 0.2}),
        Row(step=1, loss=3.0),
        Row(step=2, loss=2.0),
    ]
    draw(report(), rows, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
