"""What came true is learned, kind by kind, and fades."""

from __future__ import annotations

import pytest
import torch

from foreword.estimators import MEMORY, STEADINESS, AcceptanceEstimate, CalibrationRatio
from foreword.types import Draft, DraftTree, Verdict


def test_before_anything_is_known_the_prior_is_believed() -> None:
    assert AcceptanceEstimate().probability("kind", 0.3) == pytest.approx(0.3)


def test_a_rate_is_learned_and_others_are_left_alone() -> None:
    trust = AcceptanceEstimate()
    for turn in range(2000):
        trust.learn("often", turn % 4 != 0)
    assert trust.probability("often", 0.1) == pytest.approx(0.75, abs=0.05)
    assert trust.probability("other", 0.1) == pytest.approx(0.1)


def test_the_past_fades() -> None:
    trust = AcceptanceEstimate()
    for right in [True] * 500 + [False] * 500:
        trust.learn("kind", right)
    assert trust.probability("kind", 0.5) < 0.05


def test_chances_are_never_certain() -> None:
    trust = AcceptanceEstimate()
    for _ in range(10_000):
        trust.learn("always", True)
        trust.learn("never", False)
    held = 1 / (1 - MEMORY)
    assert trust.probability("always", 0.5) == pytest.approx(
        (held + STEADINESS / 2) / (held + STEADINESS)
    )
    assert 0 < trust.probability("never", 0.5) < trust.probability("always", 0.5) < 1


def test_what_was_said_is_read_from_the_path() -> None:
    trees = [
        DraftTree([10, 11, 12], [-1, -1, 1], [0.5, 0.4, 0.3]),
        DraftTree([20], [-1], [0.5]),
        DraftTree(),
    ]
    path = torch.tensor([[1, 2, -1], [-1, -1, -1], [-1, -1, -1]])
    verdict = Verdict.padded(path, torch.tensor([2, 0, 0]), torch.tensor([13, 21, 30]))
    assert verdict.said(Draft(trees)) == [[11, 12, 13], [21], [30]]


def test_what_promises_are_worth_is_learned_and_fades() -> None:
    earned = CalibrationRatio()
    assert earned.share == 1
    for came, share in ((1, 0.5), (2, 1.0), (0, 0.2), (5, 1.2)):
        for _ in range(400):
            earned.promise(2.0)
            earned.keep(came)
        assert earned.share == pytest.approx(share, abs=0.01), (
            "neither nothing nor much more than was promised"
        )
