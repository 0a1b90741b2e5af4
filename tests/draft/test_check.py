"""Distributions that are none are refused before they are used."""

import math

import pytest
import torch

from foreword.draft.check import check_probs
from foreword.types.draft import Draft, DraftTree

TREES = [DraftTree([1, 2], [-1, 0]), DraftTree([0], [-1])]


def probs() -> torch.Tensor:
    return torch.tensor(
        [[[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]], [[1.0, 0.0, 0.0], [9.0, -9.0, math.nan]]]
    )


def test_distributions_are_accepted_whatever_their_padding_holds():
    check_probs(Draft(TREES, probs()))
    check_probs(Draft(TREES))
    check_probs(Draft([DraftTree(), DraftTree()], probs()[:, :0]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([1.5, 0.5, -1.0], "must be probabilities"),
        ([0.5, 0.5, math.nan], "must be probabilities"),
        ([math.inf, 0.5, 0.5], "must be probabilities"),
        ([0.2, 0.2, 0.2], "must be probabilities"),
        ([0.0, 0.0, 0.0], "must be probabilities"),
        ([0.5, 0.0, 0.5], "above 0"),
    ],
)
def test_what_is_no_distribution_is_refused(wrong, said):
    held = probs()
    held[0, 0] = torch.tensor(wrong)
    with pytest.raises(ValueError, match=said):
        check_probs(Draft(TREES, held))
