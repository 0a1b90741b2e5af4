"""Shapes of trees: what they say, and the best of them against all there are."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.tree.shapes import Shape, full_tree, sequoia

probabilities = st.lists(
    st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.6, 0.9, 1.0]), min_size=1, max_size=3
)


@cache
def every_forest(nodes: int, levels: int, children: int) -> list[tuple]:
    """All forests of so many nodes, as nested tuples, within these bounds."""
    if not nodes:
        return [()]
    if not levels or not children:
        return []
    return [
        (first, *rest)
        for size in range(1, nodes + 1)
        for first in every_forest(size - 1, levels - 1, MOST)
        for rest in every_forest(nodes - size, levels, children - 1)
    ]


MOST = 3


def worth(forest: tuple, acceptance: list[float]) -> float:
    """Draft tokens that are kept on average, by the definition."""
    return sum(
        acceptance[rank] * (1 + worth(child, acceptance))
        for rank, child in enumerate(forest)
    )


def expected(shape: Shape, acceptance: list[float]) -> float:
    """Mean draft tokens kept, where the k-th child is with acceptance[k - 1]."""
    kept: list[float] = []
    for node, parent in enumerate(shape):
        before = kept[parent] if parent >= 0 else 1.0
        kept.append(acceptance[shape[:node].count(parent)] * before)
    return sum(kept)


def test_a_tree_is_spread_depth_by_depth() -> None:
    assert full_tree((1, 1, 1)) == (-1, 0, 1)
    assert full_tree((2, 2)) == (-1, -1, 0, 0, 1, 1)
    assert full_tree((3, 1)) == (-1, -1, -1, 0, 1, 2)
    assert full_tree(()) == ()


def test_what_is_expected_is_sum_of_probabilities_of_all_paths() -> None:
    assert expected((-1, 0, -1, 0), [0.5, 0.2]) == pytest.approx(0.5 + 0.25 + 0.2 + 0.1)


@given(probabilities, st.integers(0, 6), st.integers(1, 4))
def test_no_tree_is_better(acceptance: list[float], budget: int, depth: int) -> None:
    acceptance = acceptance + [0.0] * (MOST - len(acceptance))
    shape = sequoia(acceptance, budget, depth)
    best = max(
        worth(forest, acceptance)
        for nodes in range(budget + 1)
        for forest in every_forest(nodes, depth, MOST)
    )
    assert expected(shape, acceptance) == pytest.approx(best)


@given(probabilities, st.integers(0, 30), st.integers(1, 8))
def test_a_shape_keeps_to_its_bounds(
    acceptance: list[float], budget: int, depth: int
) -> None:
    shape = sequoia(acceptance, budget, depth)
    assert len(shape) <= budget
    assert all(-1 <= parent < node for node, parent in enumerate(shape))
    assert max(map(shape.count, shape), default=0) <= len(acceptance)
    assert all(_depth(shape, node) <= depth for node in range(len(shape)))


def test_likely_first_child_makes_chain_and_unlikely_one_bush() -> None:
    assert sequoia([0.9, 0.05], 5, 8) == full_tree((1, 1, 1, 1, 1))
    assert sequoia([0.3, 0.25, 0.2], 3, 8) == full_tree((3,))
    assert sequoia([0.9, 0.05], 5, 2).count(-1) == 2


def test_draft_token_that_is_never_kept_is_left_out() -> None:
    assert sequoia([0.5, 0.0], 8, 3) == full_tree((1, 1, 1))


def _depth(shape: Shape, node: int) -> int:
    return 0 if node < 0 else 1 + _depth(shape, shape[node])
