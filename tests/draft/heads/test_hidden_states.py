"""Hidden states of the target: kept in order until they are read, and no others."""

import pytest
import torch

from foreword.draft.heads.hidden_states import TargetStates
from foreword.types import Request, SamplingParams


@pytest.fixture
def sequence() -> Request:
    return Request(7, list(range(6)), 6, SamplingParams(), seed=0)


def rows(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def test_parts_become_one_and_what_was_read_is_forgotten(sequence):
    seen = TargetStates()
    seen.add(sequence, 0, rows(0, 1))
    assert not seen.up_to_date(sequence)
    seen.add(sequence, 2, rows(2, 3, 4))
    assert seen.up_to_date(sequence)
    assert seen.since(sequence, 1).flatten().tolist() == [1, 2, 3, 4]
    assert seen.since(sequence, 4).flatten().tolist() == [4]
    sequence.tokens.append(6)
    assert not seen.up_to_date(sequence)
    seen.add(sequence, 5, rows(5))
    assert seen.since(sequence, 4).flatten().tolist() == [4, 5]


def test_what_does_not_follow_is_not_taken_for_what_does(sequence):
    seen = TargetStates()
    seen.add(sequence, 1, rows(1, 2, 3, 4, 5))
    assert not seen.up_to_date(sequence)
    seen.forget(sequence)
    seen.forget(sequence)
    assert len(seen) == 0
