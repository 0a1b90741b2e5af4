"""Tokens per round: predicted by the draft tokens' probabilities, and emitted."""

from dataclasses import replace

import pytest
import torch

import starter
from foreword.budget import AdaptiveBudget, FixedBudget, policy
from foreword.types import Clock, Draft, DraftTree
from foreword_lab.bench.decoding import Decoding, decoding_of
from foreword_lab.bench.engine_entry import predictions_of, watched
from foreword_lab.bench.records import Round
from foreword_lab.bench.report import Report
from foreword_lab.bench.run import Options, run

KEYS = ("predicted_tokens_per_round", "predicted_rounds_tokens_per_round")
LIKELY = DraftTree([5, 6, 7], [-1, 0, 0], [0.75, 0.5, 0.125])


def a_round(accepted: int, predicted: float | None) -> Round:
    return Round(
        accepted + 1, 4, accepted, 1.0, Clock(), 0.5, 0.1, False, predicted=predicted
    )


def figures(*rounds: Round) -> Decoding:
    found = decoding_of(list(rounds))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def report() -> Report:
    """A draft model that is the target."""
    options = Options(
        target=str(starter.draft()),
        draft=str(starter.draft()),
        methods=("lm",),
        temperatures=(0.0,),
        limit_prompts=1,
        max_tokens=16,
        dtype="float32",
        budget="heuristic",  # the adaptive one may draft nothing on a busy machine
    )
    return run(options)


def test_prediction_and_measure_are_of_the_same_rounds():
    found = figures(a_round(2, 2.5), a_round(0, 1.5), a_round(4, None))
    assert found.predicted_tokens_per_round == 2.0
    assert found.predicted_rounds_tokens_per_round == 2.0


def test_rounds_without_probabilities_predict_nothing():
    found = figures(a_round(2, None))
    assert found.predicted_tokens_per_round is None
    assert found.predicted_rounds_tokens_per_round is None


class Few(FixedBudget):
    """Keeps one draft token."""

    def trim(self, draft: Draft) -> Draft:
        return draft.pruned([[0]])


@pytest.mark.parametrize(
    ("budget", "tree", "predicted"),
    [
        (FixedBudget(4), LIKELY, [2.375]),
        (Few(4), LIKELY, [1.75]),
        (FixedBudget(4), DraftTree(), []),
        (FixedBudget(4), DraftTree([5], [-1]), []),
    ],
)
def test_what_is_scored_is_predicted(budget, tree, predicted):
    watched(budget).trim(Draft([tree]))
    assert list(predictions_of(budget)) == predicted


def test_members_of_an_ensemble_note_in_one_place():
    budget = watched(AdaptiveBudget({1: 0.1, 8: 0.2}))
    other = budget.anew()
    other.trim(Draft([LIKELY]))
    assert other is not budget
    assert len(predictions_of(budget)) == 1


def test_budgets_that_decide_token_by_token_are_not_watched():
    chains = policy("confidence")(dict)
    assert watched(chains) is chains


def test_report_has_both_figures(report):
    plain, drafted = (
        next(row for row in report.as_json()["rows"] if row["name"] == name)
        for name in ("plain", "lm")
    )
    assert [plain[key] for key in KEYS] == [None, None]
    predicted, measured = (drafted[key] for key in KEYS)
    assert 1 < predicted <= 5
    # the draft model is the target, so every draft token is accepted
    assert measured == pytest.approx(5, abs=1)
    torch.testing.assert_close(predicted, measured, rtol=0.5, atol=0)


def test_table_shows_both_where_there_is_a_prediction(report, printed):
    assert "predicted⁴" in printed(report.table())
    plain = replace(
        report, rows=tuple(row for row in report.rows if row.name == "plain")
    )
    assert "predicted" not in printed(plain.table())
