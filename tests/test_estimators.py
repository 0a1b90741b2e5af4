"""Estimates learn from what is accepted, kind by kind, and fade."""

import pytest
import torch

from foreword.draft.acceptance import MEMORY, STEADINESS, AcceptanceEstimate
from foreword.estimators import CalibrationRatio
from foreword.types import Draft, DraftTree, Verdict


def test_prior_is_used_without_observations() -> None:
    assert AcceptanceEstimate().probability("kind", 0.3) == pytest.approx(0.3)


def test_kinds_are_learned_apart() -> None:
    estimate = AcceptanceEstimate()
    for turn in range(2000):
        estimate.learn("often", turn % 4 != 0)
    assert estimate.probability("often", 0.1) == pytest.approx(0.75, abs=0.05)
    assert estimate.probability("other", 0.1) == pytest.approx(0.1)


def test_the_past_fades() -> None:
    estimate = AcceptanceEstimate()
    for right in [True] * 500 + [False] * 500:
        estimate.learn("kind", right)
    assert estimate.probability("kind", 0.5) < 0.05


def test_probabilities_are_never_certain() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(10_000):
        estimate.learn("always", True)
        estimate.learn("never", False)
    held = 1 / (1 - MEMORY)
    assert estimate.probability("always", 0.5) == pytest.approx(
        (held + STEADINESS / 2) / (held + STEADINESS)
    )
    assert (
        0 < estimate.probability("never", 0.5) < estimate.probability("always", 0.5) < 1
    )


def test_verdict_gives_the_emitted_tokens() -> None:
    trees = [
        DraftTree([10, 11, 12], [-1, -1, 1], [0.5, 0.4, 0.3]),
        DraftTree([20], [-1], [0.5]),
        DraftTree(),
    ]
    path = torch.tensor([[1, 2, -1], [-1, -1, -1], [-1, -1, -1]])
    verdict = Verdict.padded(path, torch.tensor([2, 0, 0]), torch.tensor([13, 21, 30]))
    assert verdict.said(Draft(trees)) == [[11, 12, 13], [21], [30]]


def test_calibration_is_learned_within_its_bounds() -> None:
    earned = CalibrationRatio()
    assert earned.share == 1
    for came, share in ((1, 0.5), (2, 1.0), (0, 0.2), (5, 1.2)):
        for _ in range(400):
            earned.promise(2.0)
            earned.keep(came)
        assert earned.share == pytest.approx(share, abs=0.01), (
            "neither nothing nor much more than was promised"
        )
