"""Speculative sampling: how often a draft token stays, and what happens where floating
point has no answer.
"""

import torch

from distributions import random_noise
from foreword.types import Noise
from foreword.verify.rejection import chain_distributions, ratios, rejection
from foreword_lab.certify.worlds import chain


def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    """Leviathan et al. 2023, theorem 3.5: acceptance is sum min(p, q)."""
    rng = torch.Generator().manual_seed(0)
    rows, vocab = 200_000, 6
    p, q = torch.randn(2, vocab, generator=rng, dtype=torch.float64).softmax(-1)
    draft_token = q.multinomial(rows, replacement=True, generator=rng)[:, None]
    weights = p.log().expand(rows, 2, -1)
    verdict = rejection(
        weights,
        chain(draft_token, q.expand(rows, 1, -1)),
        random_noise(weights.shape, rng),
    )
    theory = torch.minimum(p, q).sum().item()
    # Four standard errors of a share.
    assert (
        abs(verdict.accepted.double().mean().item() - theory)
        < 4 * (theory * (1 - theory) / rows) ** 0.5
    )


def test_where_nothing_is_left_the_target_is_drawn_from() -> None:
    """Only rounding refuses a draft token where p equals q; an acceptance draw of
    exactly 1 does the same.
    """
    p = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    weights = p.log().expand(2, 2, -1)
    noise = Noise(None, torch.ones(2, 2), torch.tensor([[0.2, 0.5], [0.3, 0.5]]))
    verdict = rejection(
        weights, chain(torch.zeros(2, 1, dtype=torch.long), p.expand(2, 1, -1)), noise
    )
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.bonus.tolist() == [0, 2]


def test_only_the_target_forbids_draft_tokens() -> None:
    weights = torch.tensor([1.0, 0.0]).log().expand(2, 2, -1)
    probs = torch.tensor([[0.0, 1.0], [0.0, 1.0]])[:, None]
    noise = Noise(None, torch.full((2, 2), 1e-30), torch.full((2, 2), 0.5))
    draft = chain(torch.tensor([[1], [0]]), probs)
    verdict = rejection(weights, draft, noise)
    assert ratios(*chain_distributions(weights, draft), draft).isfinite().all()
    assert verdict.accepted.tolist() == [0, 1]
    assert verdict.bonus.tolist() == [0, 0]


def test_impossible_draft_token_is_rejected() -> None:
    weights = torch.tensor([1.0, 0.0]).log().expand(1, 2, -1)
    draft = chain(torch.tensor([[1]]), torch.tensor([[[1.0, 0.0]]]))
    assert ratios(*chain_distributions(weights, draft), draft).tolist() == [[0.0]]
    assert rejection(
        weights, draft, Noise(None, torch.full((1, 2), 1e-30), torch.full((1, 2), 0.5))
    ).bonus.tolist() == [0]
