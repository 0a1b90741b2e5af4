"""Speculative sampling: how often a guess stays, and a draw that never yields the impossible."""

from __future__ import annotations

import pytest
import torch

from foreword.types import Noise
from foreword.verify import rejection
from foreword.verify.rejection import chain_laws, draw, ratios

from .laws import chain, random_noise


def test_acceptance_is_the_overlap_of_the_laws() -> None:
    """Leviathan et al. 2023, theorem 3.5: a drawn guess stays with probability sum min(p, q)."""
    rng = torch.Generator().manual_seed(0)
    rows, vocab = 200_000, 6
    p, q = torch.randn(2, vocab, generator=rng, dtype=torch.float64).softmax(-1)
    guess = q.multinomial(rows, replacement=True, generator=rng)[:, None]
    weights = p.log().expand(rows, 2, -1)
    verdict = rejection(weights, chain(guess, q.expand(rows, 1, -1)), random_noise(weights.shape, rng))
    theory = torch.minimum(p, q).sum().item()
    # Four standard errors of a share.
    assert abs(verdict.accepted.double().mean().item() - theory) < 4 * (theory * (1 - theory) / rows) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
def test_the_impossible_is_never_drawn(dtype: torch.dtype, uniform: float) -> None:
    law = torch.zeros(3, 1000, dtype=dtype)
    law[0, 500] = 1e-30
    law[1, 1:-1:2] = 0.3
    law[2, 7], law[2, 900] = 1.0, 1e-20
    token = draw(law, torch.full((3,), uniform, dtype=torch.float64))
    assert (law[torch.arange(3), token] > 0).all()


def test_a_draw_inverts_the_cumulative_sum() -> None:
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 0.99], dtype=torch.float64)
    law = torch.tensor([2.0, 0.0, 3.0, 5.0, 0.0]).expand(len(uniform), -1)
    assert draw(law, uniform).tolist() == [0, 0, 2, 2, 3, 3]


def test_the_tail_of_a_large_vocabulary_is_drawn() -> None:
    law = torch.full((1, 200_000), 1e-9)
    law[0, 0] = 1.0
    uniform = (1 + 1e-9 * (torch.tensor([1000], dtype=torch.float64) - 0.5)) / (1 + 1e-9 * 199_999)
    assert abs(draw(law, uniform).item() - 1000) <= 1


def test_where_nothing_is_left_the_target_is_drawn_from() -> None:
    """Only rounding refuses a guess where p equals q; an acceptance draw of exactly 1 does the same."""
    p = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    weights = p.log().expand(2, 2, -1)
    noise = Noise(None, torch.ones(2, 2), torch.tensor([[0.2, 0.5], [0.3, 0.5]]))
    verdict = rejection(weights, chain(torch.zeros(2, 1, dtype=torch.long), p.expand(2, 1, -1)), noise)
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.bonus.tolist() == [0, 2]


def test_a_guess_that_the_target_forbids_goes_and_one_that_only_the_drafter_forbids_stays() -> None:
    weights = torch.tensor([1.0, 0.0]).log().expand(2, 2, -1)
    probs = torch.tensor([[0.0, 1.0], [0.0, 1.0]])[:, None]
    noise = Noise(None, torch.full((2, 2), 1e-30), torch.full((2, 2), 0.5))
    draft = chain(torch.tensor([[1], [0]]), probs)
    verdict = rejection(weights, draft, noise)
    assert ratios(*chain_laws(weights, draft), draft).isfinite().all()
    assert verdict.accepted.tolist() == [0, 1]
    assert verdict.bonus.tolist() == [0, 0]


def test_a_guess_that_nobody_can_say_goes() -> None:
    weights = torch.tensor([1.0, 0.0]).log().expand(1, 2, -1)
    draft = chain(torch.tensor([[1]]), torch.tensor([[[1.0, 0.0]]]))
    assert ratios(*chain_laws(weights, draft), draft).tolist() == [[0.0]]
    assert rejection(
        weights, draft, Noise(None, torch.full((1, 2), 1e-30), torch.full((1, 2), 0.5))
    ).bonus.tolist() == [0]
