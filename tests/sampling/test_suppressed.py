"""Suppressed tokens are those that transformers' two processors suppress, bit for bit;
scores are not modified.
"""

import pytest
import torch
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from foreword.sampling.suppressed import Suppressed


@pytest.mark.parametrize("ids", [[0], [3, 7, 7, 19], [-1, 2, 25]], ids=str)
def test_scores_are_those_of_transformers(ids):
    for length in (3, 4, 5):
        check(ids, length)


def check(ids: list[int], length: int) -> None:
    tokens, scores = torch.zeros(1, length, dtype=torch.long), torch.randn(1, 20)
    before = scores.clone()
    everywhere = SuppressTokensLogitsProcessor(ids)(tokens, before)
    assert torch.equal(Suppressed(ids)(tokens, scores), everywhere)
    first = SuppressTokensAtBeginLogitsProcessor(ids, 4)(tokens, before)
    assert torch.equal(Suppressed(ids, 4)(tokens, scores), first)
    assert torch.equal(first, before) == (length != 4)
    assert torch.equal(scores, before)
    assert bool(everywhere.isinf().any())
