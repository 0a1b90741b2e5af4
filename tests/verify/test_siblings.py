"""Lists of siblings that are sampled without replacement, or chosen."""

import torch

from distributions import random_noise
from foreword.verify.without_replacement import residual, untried, without_replacement
from foreword_lab.certify.enumeration import bias, over_uniforms
from foreword_lab.certify.worlds import (
    AllDrafts,
    World,
    along,
    changed,
    chosen_tree,
    drawn_tree,
)

EXACT = 1e-9


def test_a_list_of_the_whole_vocabulary_always_holds_the_token() -> None:
    world = World.random(0, vocab=4, depth=1)
    draft, _ = drawn_tree(4, distinct=True)(world)
    weights = along(world.target, draft).log()
    for seed in range(20):
        noise = random_noise(weights.shape, torch.Generator().manual_seed(seed))
        assert without_replacement(weights, draft, noise).accepted.all()


def test_chosen_siblings_stay_with_their_target_mass() -> None:
    world = World.random(3, vocab=5, depth=1)
    draft, _ = chosen_tree(3)(world)
    weights = along(world.target, draft).log()
    kept = over_uniforms(without_replacement, weights, draft)[0, 1:].sum(dim=1)
    assert torch.allclose(kept, world.target[0][draft.tokens[0]], atol=EXACT)


def test_draft_token_without_mass_counts_as_chosen() -> None:
    """A float32 distribution may run out of tokens: any filling keeps it."""
    world = World.random(0, vocab=3, depth=1)
    certain = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)

    def filled(world: World) -> AllDrafts:
        draft, likely = chosen_tree(2)(world)
        return AllDrafts(changed(draft, probs=certain.expand(1, 2, -1)), likely)

    world = World(world.target, (certain,))
    assert bias(without_replacement, filled, world, gumbel=False) < EXACT


def test_distribution_of_next_sibling_leaves_out_what_was_tried() -> None:
    distribution = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    tried = torch.tensor([[True, False, False], [True, False, False]])
    expected = torch.tensor([[0.0, 0.6, 0.4], [0.0, 0.0, 1.0]])
    assert torch.allclose(untried(distribution, tried, torch.tensor([1, 2])), expected)


def test_residual_is_what_the_draft_token_did_not_cover() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    left = residual(p, torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.8, 0.0]]))
    assert torch.allclose(left, torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.8, 0.0]]))
