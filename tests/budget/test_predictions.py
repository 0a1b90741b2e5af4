"""The largest tree tried: larger where a forward waits for more than its rows."""

import pytest

from foreword.budget import predictions as C
from foreword.budget.predictions import DraftProbabilities, largest
from foreword.types.params import NODES


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 1.0}, C.TREE),
        ({1: 1.0, 16: 1.1, 64: 2.1}, C.TREE),
        ({1: 1.0, 64: 1.9, 256: 9.0}, 63),
        ({1: 1.0, 64: 1.0, 256: 1.2}, NODES),
    ],
)
def test_a_tree_is_as_large_as_rows_are_cheap(seconds, expected):
    assert largest(seconds) == expected


def test_number_of_draft_tokens_grows_to_limit_and_no_further():
    probabilities = DraftProbabilities(NODES)
    for _ in range(40):
        probabilities.settle([probabilities.nodes], 1.0)
    assert probabilities.nodes == NODES > C.TREE
