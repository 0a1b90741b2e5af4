"""Block verification and traversal: the paper's example, and more accepted tokens."""

import pytest
import torch

from foreword.types import Noise, Verify
from foreword.verify.block import block, prefix_acceptance
from foreword.verify.rejection import rejection
from foreword.verify.traversal import traversal
from foreword.verify.without_replacement import without_replacement
from foreword_lab.certify.enumeration import BITS, FEW_BITS, over_uniforms
from foreword_lab.certify.worlds import World, along, chain, chosen, drawn, drawn_tree


def expected_length(verify: Verify, world: World, drafting=drawn, bits=BITS) -> float:
    """Draft tokens accepted on average, up to 2 ** -bits in each threshold."""
    draft, likely = drafting(world)
    weights = along(world.target, draft).log()
    ends = over_uniforms(verify, weights, draft, bits).sum(dim=-1)
    return (likely[:, None] * ends * torch.tensor(draft.trees[0].depths)).sum().item()


def test_the_example_of_the_paper() -> None:
    """Sun et al., example: 10/9 of two stay token by token, 11/9 as a block."""
    p, q = torch.tensor([[1, 2], [2, 1]], dtype=torch.float64) / 3
    world = World((p, p.expand(2, 2), p.expand(2, 2, 2)), (q, q.expand(2, 2)))
    assert expected_length(rejection, world) == pytest.approx(10 / 9, abs=1e-9)
    assert expected_length(block, world) == pytest.approx(11 / 9, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_more_draft_tokens_stay_than_token_by_token(seed: int) -> None:
    world = World.random(seed, vocab=3, depth=3)
    assert expected_length(block, world) > expected_length(rejection, world)


def test_chosen_draft_tokens_are_verified_as_token_by_token() -> None:
    """A point mass leaves nothing to gain: both keep each prefix by its probability."""
    world = World.random(0, vocab=3, depth=3)
    draft, _ = chosen(world)
    weights = along(world.target, draft).log()
    assert torch.allclose(
        over_uniforms(block, weights, draft),
        over_uniforms(rejection, weights, draft),
        atol=1e-9,
    )


def test_draft_token_that_fails_alone_is_carried_by_next() -> None:
    """p/q is 1/2 and then 2: the block stays whatever the noise."""
    p = torch.tensor([[[0.4, 0.6], [0.8, 0.2], [0.5, 0.5]]])
    draft = chain(torch.tensor([[0, 0]]), torch.tensor([[[0.8, 0.2], [0.4, 0.6]]]))
    noise = Noise(None, torch.full((1, 3), 0.99), torch.full((1, 3), 0.3))
    assert rejection(p.log(), draft, noise).accepted.tolist() == [0]
    assert block(p.log(), draft, noise).accepted.tolist() == [2]


def test_a_prefix_with_nothing_left_to_add_passes() -> None:
    draft = chain(torch.tensor([[0, 0, 0]]), None)
    reach = torch.tensor([[1.0, 1.0, 0.5, 0.25]])
    passes = prefix_acceptance(reach, torch.zeros(1, 4, 2), draft)
    assert passes.tolist() == [[1.0, 0.0, 0.25]]


@pytest.mark.parametrize("seed", range(2))
def test_more_draft_tokens_stay_than_from_the_root_down(seed: int) -> None:
    world = World.random(seed, vocab=3, depth=2)
    tree = drawn_tree(2, 1, distinct=True)
    ours = expected_length(traversal, world, tree, FEW_BITS)
    assert ours > expected_length(without_replacement, world, tree, FEW_BITS) + 1e-3


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
