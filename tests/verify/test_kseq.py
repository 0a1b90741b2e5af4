"""k-sequential selection: the factor that makes what is left a distribution, acceptance
in theory, and drafts that agree.
"""

import pytest
import torch

from foreword.certify.enumeration import over_uniforms
from foreword.certify.worlds import World, along, drawn_tree
from foreword.types import Draft, Noise
from foreword.verify import kseq, rejection
from foreword.verify.kseq import any_of, selection, smallest_rho

from .test_rules import assert_same, problem


def pairs(
    rows: int = 200, vocab: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random distributions p and q, and how many draft tokens are drawn."""
    rng = torch.Generator().manual_seed(0)
    p, q = (
        2 * torch.randn(2, rows, vocab, generator=rng, dtype=torch.float64)
    ).softmax(-1)
    return p, q, torch.arange(rows) % 8 + 1


@pytest.mark.parametrize("with_probs", [True, False], ids=["drawn", "chosen"])
def test_a_chain_is_verified_token_by_token(with_probs: bool) -> None:
    weights, draft, noise = problem(23, with_probs)
    assert_same(kseq(weights, draft, noise), rejection(weights, draft, noise))


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
    """Two chains [0, 1] and [0, 2]: the first [0] stays, then the target refuses 1 and
    takes the 2 below the second.
    """
    first, second = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.0, 0.9]])
    weights = torch.stack((first, second, second, first, first))[None].log()
    draft = Draft.padded(
        tokens=torch.tensor([[0, 0, 1, 2]]),
        parents=torch.tensor([[-1, -1, 0, 1]]),
        count=torch.tensor([4]),
        probs=torch.tensor(
            [[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.1, 0.4, 0.5], [0.1, 0.4, 0.5]]
        )[None],
        chain=False,
    )
    # the second [0] need not pass a test of its own
    accept = torch.tensor([[0.3, 0.99, 0.3, 0.3, 0.5]])
    verdict = kseq(weights, draft, Noise(None, accept, torch.full((1, 5), 0.5)))
    assert verdict.path.tolist() == [[1, 3, -1, -1]]
    assert verdict.accepted.tolist() == [2]


def test_a_small_probability_is_not_rounded_away() -> None:
    assert any_of(torch.tensor([1e-9]), torch.tensor([4])).item() == pytest.approx(
        4e-9, rel=1e-5
    )
