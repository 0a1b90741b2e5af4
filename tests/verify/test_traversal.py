"""Traversal verification: block verification on chains, and more draft tokens kept than
from the root down.
"""

import pytest
import torch

from foreword.certify.enumeration import FEW_BITS, over_uniforms
from foreword.certify.worlds import World, along, drawn_tree
from foreword.types import Verify
from foreword.verify import block, traversal, without_replacement

from .test_rules import assert_same, problem


@pytest.mark.parametrize("with_probs", [True, False], ids=["drawn", "chosen"])
def test_a_chain_is_verified_as_a_block(with_probs: bool) -> None:
    weights, draft, noise = problem(24, with_probs)
    assert_same(traversal(weights, draft, noise), block(weights, draft, noise))


def expected_length(verify: Verify, world: World, *branching: int) -> float:
    """Draft tokens accepted on average, up to 2 ** -12 in each threshold."""
    draft, likely = drawn_tree(*branching, distinct=True)(world)
    weights = along(world.target, draft).log()
    ends = over_uniforms(verify, weights, draft, FEW_BITS).sum(dim=-1)
    return (likely[:, None] * ends * torch.tensor(draft.trees[0].depths)).sum().item()


@pytest.mark.parametrize("seed", range(2))
def test_more_draft_tokens_stay_than_from_the_root_down(seed: int) -> None:
    world = World.random(seed, vocab=3, depth=2)
    assert (
        expected_length(traversal, world, 2, 1)
        > expected_length(without_replacement, world, 2, 1) + 1e-3
    )


def test_a_list_is_verified_as_from_the_root_down() -> None:
    """Where every draft token is a leaf there is no longer path to prefer."""
    world = World.random(2, vocab=4, depth=1)
    draft, _ = drawn_tree(2, distinct=True)(world)
    weights = along(world.target, draft).log()
    assert torch.allclose(
        over_uniforms(traversal, weights, draft),
        over_uniforms(without_replacement, weights, draft),
        atol=1e-9,
    )
