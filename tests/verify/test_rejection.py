"""Speculative sampling: acceptance, and what happens where floating point fails."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distributions import random_noise
from foreword.types import Draft, Noise
from foreword.verify.rejection import chain_distributions, ratios, rejection
from foreword.verify.residual import draw, stop_at
from foreword_lab.certify.worlds import chain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
def test_the_impossible_is_never_drawn(dtype: torch.dtype, uniform: float) -> None:
    distribution = torch.zeros(3, 1000, dtype=dtype)
    distribution[0, 500] = 1e-30
    distribution[1, 1:-1:2] = 0.3
    distribution[2, 7], distribution[2, 900] = 1.0, 1e-20
    token = draw(distribution, torch.full((3,), uniform, dtype=torch.float64))
    assert (distribution[torch.arange(3), token] > 0).all()


def test_a_draw_inverts_the_cumulative_sum() -> None:
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 0.99], dtype=torch.float64)
    distribution = torch.tensor([2.0, 0.0, 3.0, 5.0, 0.0]).expand(len(uniform), -1)
    assert draw(distribution, uniform).tolist() == [0, 0, 2, 2, 3, 3]


def test_the_tail_of_a_large_vocabulary_is_drawn() -> None:
    distribution = torch.full((1, 200_000), 1e-9)
    distribution[0, 0] = 1.0
    uniform = (1 + 1e-9 * (torch.tensor([1000], dtype=torch.float64) - 0.5)) / (
        1 + 1e-9 * 199_999
    )
    assert abs(draw(distribution, uniform).item() - 1000) <= 1


@given(
    st.integers(0, 8).flatmap(
        lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
    ),
    st.data(),
)
def test_the_path_climbs_from_the_end_to_the_root(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    ends = [data.draw(st.integers(0, len(parents))) for _ in range(3)]
    row = torch.tensor(parents, dtype=torch.long).expand(3, -1)
    noise = Noise(
        None,
        torch.full((3, len(parents) + 1), 0.5),
        torch.full((3, len(parents) + 1), 0.5),
    )
    draft = Draft.padded(
        torch.zeros_like(row), row, torch.full((3,), len(parents)), chain=False
    )
    verdict = stop_at(
        torch.tensor(ends), torch.tensor([[0.0, 1.0]]).expand(3, -1), draft, noise
    )
    for end, path, accepted in zip(
        ends, verdict.path.tolist(), verdict.accepted.tolist(), strict=True
    ):
        climbed = []
        while end:
            climbed.insert(0, end - 1)
            end = parents[end - 1] + 1
        assert path == climbed + [-1] * (len(parents) - len(climbed))
        assert accepted == len(climbed)
    assert verdict.bonus.tolist() == [1, 1, 1]


def test_the_bonus_is_drawn_with_the_noise_of_its_column() -> None:
    draft = Draft.padded(
        torch.zeros(2, 1, dtype=torch.long),
        torch.full((2, 1), -1),
        torch.ones(2, dtype=torch.long),
    )
    noise = Noise(None, torch.full((2, 2), 0.5), torch.tensor([[0.1, 0.9], [0.1, 0.9]]))
    distribution = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    verdict = stop_at(torch.tensor([0, 1]), distribution, draft, noise)
    assert verdict.bonus.tolist() == [0, 1]


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
    """Only rounding, or a draw of exactly 1, refuses a token where p equals q."""
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
