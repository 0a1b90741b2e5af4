"""Where draft tokens are trained: after all but a record's first token."""

import pytest
import torch

from foreword_train.data.packing import Block, Piece, stack
from foreword_train.methods.ahead import pick

DEPTH = 3
BLOCK = stack(
    [
        Block.of(
            [
                Piece([5, 6, 7, 8, 9], [False, False, True, True, True]),
                Piece([1, 2], [True, True]),
            ],
            9,
        ),
        Block.of(
            [
                Piece(
                    list(range(20, 28)),
                    [False, True, True, False, True, True, True, True],
                )
            ],
            9,
        ),
    ]
)
"""Learnt: 7 8 9 and 2; then 21 22, 24 25 26 27. One token before was not read."""
EXPECTED = {
    (0, 1): [7, 8, 9],
    (0, 2): [8, 9],
    (0, 3): [9],
    (1, 1): [22],
    (1, 3): [24, 25, 26],
    (1, 4): [25, 26, 27],
    (1, 5): [26, 27],
    (1, 6): [27],
}


def found(most: int, *, spread: bool) -> dict[tuple[int, int], list[int]]:
    """(record block, anchor) -> the tokens that are predicted there."""
    anchors = pick(BLOCK, most, DEPTH, spread=spread)
    tokens, before = anchors.tokens(BLOCK), anchors.tokens(BLOCK, 0)
    assert torch.equal(before[..., 1:], tokens[..., :-1])
    return {
        (row, int(anchors.places[row, at])): tokens[row, at][
            anchors.valid[row, at]
        ].tolist()
        for row, at in anchors.valid.any(-1).nonzero().tolist()
    }


@pytest.mark.parametrize("spread", [True, False])
def test_anchors_are_all_places_before_trained_tokens(spread):
    assert found(9, spread=spread) == EXPECTED
    assert found(100, spread=spread) == EXPECTED


@pytest.mark.parametrize("spread", [True, False])
def test_fewer_anchors_are_some_of_them(spread):
    few = found(2, spread=spread)
    assert few.items() <= EXPECTED.items()
    assert [sum(row == number for row, _ in few) for number in (0, 1)] == [2, 2]


def test_only_random_anchors_change():
    torch.manual_seed(0)
    assert len({tuple(sorted(found(2, spread=False))) for _ in range(10)}) > 3
    assert len({tuple(sorted(found(2, spread=True))) for _ in range(10)}) == 1
    assert set(found(2, spread=True)) == {(0, 1), (0, 3), (1, 1), (1, 5)}
