"""Lists of siblings: independent ones, k-sequential ones, and distinct ones."""

import pytest
import torch

from distributions import random_noise
from foreword.types import Draft, Noise
from foreword.verify.kseq import any_of, kseq, selection, smallest_rho
from foreword.verify.specinfer import specinfer
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


@pytest.mark.parametrize("many", [2, 3])
def test_acceptance_is_that_of_one_refusal_after_the_other(many: int) -> None:
    """What is left does not depend on the refused token (1 - prod (1 - sum min))."""
    world = World.random(5, vocab=4, depth=1)
    draft, likely = drawn_tree(many, distinct=False)(world)
    decided = over_uniforms(specinfer, along(world.target, draft).log(), draft)
    accepted = (likely * decided[:, 1:].sum(dim=(1, 2))).sum().item()
    left, q, none = world.target[0], world.drafter[0], 1.0
    for _ in range(many):
        none *= 1 - torch.minimum(left, q).sum().item()
        left = (left - q).clamp(min=0) / (left - q).clamp(min=0).sum()
    assert accepted == pytest.approx(1 - none, abs=1e-9)


# ---- k-sequential selection


def pairs(
    rows: int = 200, vocab: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random distributions p and q, and how many draft tokens are drawn."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(2, rows, vocab, generator=rng, dtype=torch.float64)
    p, q = (2 * noise).softmax(-1)
    return p, q, torch.arange(rows) % 8 + 1


def test_rho_solves_its_equation_and_is_never_too_small() -> None:
    p, q, many = pairs()
    rho = smallest_rho(p, q, many)
    beta = torch.minimum(q, p / rho[:, None]).sum(dim=1)
    gap = rho * beta - any_of(beta, many)
    assert (gap >= -1e-15).all()
    assert (gap < 1e-7).all()
    assert ((rho >= 1) & (rho <= many)).all()


def test_what_stays_and_what_is_left_make_up_the_target() -> None:
    p, q, many = pairs()
    probability, left = selection(p, q, many)
    kept = q * probability.clamp(max=1)
    beta = kept.sum(dim=1, keepdim=True)
    some = any_of(beta, many[:, None])
    assert torch.allclose(kept / beta * some + left * (1 - some), p, atol=1e-7)


@pytest.mark.parametrize("many", [2, 3])
def test_acceptance_is_that_of_independent_tries(many: int) -> None:
    world = World.random(5, vocab=4, depth=1)
    draft, likely = drawn_tree(many, distinct=False)(world)
    decided = over_uniforms(kseq, along(world.target, draft).log(), draft)
    p, q, tries = world.target[0][None], world.drafter[0][None], torch.tensor([many])
    beta = torch.minimum(q, p / smallest_rho(p, q, tries)[:, None]).sum()
    accepted = (likely * decided[:, 1:].sum(dim=(1, 2))).sum().item()
    assert accepted == pytest.approx(1 - (1 - beta.item()) ** many, abs=1e-9)


def test_drafts_that_begin_alike_are_verified_together() -> None:
    """Two chains [0, 1] and [0, 2]: [0] stays, then 1 is refused and 2 taken."""
    first, second = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.0, 0.9]])
    weights = torch.stack((first, second, second, first, first))[None].log()
    draft = Draft.padded(
        tokens=torch.tensor([[0, 0, 1, 2]]),
        parents=torch.tensor([[-1, -1, 0, 1]]),
        count=torch.tensor([4]),
        probs=torch.tensor([[0.8, 0.1, 0.1]] * 2 + [[0.1, 0.4, 0.5]] * 2)[None],
        chain=False,
    )
    # the second [0] need not pass a test of its own
    accept = torch.tensor([[0.3, 0.99, 0.3, 0.3, 0.5]])
    verdict = kseq(weights, draft, Noise(None, accept, torch.full((1, 5), 0.5)))
    assert verdict.path.tolist() == [[1, 3, -1, -1]]
    assert verdict.accepted.tolist() == [2]


def test_a_small_probability_is_not_rounded_away() -> None:
    found = any_of(torch.tensor([1e-9]), torch.tensor([4])).item()
    assert found == pytest.approx(4e-9, rel=1e-5)


# ---- without replacement


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
