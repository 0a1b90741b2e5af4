"""The losses against their definitions; gradients against finite differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import UnknownMethod
from foreword_train import losses

ROWS, VOCAB = 5, 7


def pair(seed: int = 0, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of target and draft, float64."""
    generator = torch.Generator().manual_seed(seed)
    exact = dict(dtype=torch.float64, generator=generator)
    p, q = (spread * torch.randn(ROWS, VOCAB, **exact) for _ in range(2))
    return p, q


def distribution(logits: list[float]) -> list[float]:
    weights = [math.exp(value) for value in logits]
    return [weight / sum(weights) for weight in weights]


def overlap_of(p, q):
    return sum(map(min, p, q))


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def l1(p, q):
    return sum(abs(a - b) for a, b in zip(p, q, strict=True))


def hybrid_of(p, q):
    weight = math.exp(-3 * overlap_of(p, q))
    return weight * kl(p, q) + (1 - weight) * (1 - overlap_of(p, q))


PLAINLY = {
    "forward-kl": kl,
    "reverse-kl": lambda p, q: kl(q, p),
    "tv": lambda p, q: l1(p, q) / 2,
    "log-acceptance": lambda p, q: -math.log(overlap_of(p, q)),
    "hybrid": hybrid_of,
    "kl-l1": lambda p, q: 0.1 * kl(p, q) + 0.9 * l1(p, q),
    "cross-entropy": lambda p, q: -math.log(q[p.index(max(p))]),
}


def test_every_loss_has_a_plain_definition_here():
    assert set(PLAINLY) == set(losses.LOSSES)


@pytest.mark.parametrize("name", losses.LOSSES)
@given(seed=st.integers(0, 1000), spread=st.floats(0.01, 6))
def test_loss_equals_its_definition(name, seed, spread):
    target, draft = pair(seed, spread)
    plainly = [
        PLAINLY[name](distribution(p), distribution(q))
        for p, q in zip(target.tolist(), draft.tolist(), strict=True)
    ]
    wanted = torch.tensor(plainly, dtype=torch.float64)
    torch.testing.assert_close(losses.loss(name)(target, draft), wanted)


@pytest.mark.parametrize("name", [name for name in losses.LOSSES if name != "hybrid"])
def test_gradients_equal_finite_differences(name):
    target, draft = pair()
    assert torch.autograd.gradcheck(
        lambda q: losses.loss(name)(target, q), draft.requires_grad_()
    )


@pytest.mark.parametrize("name", losses.LOSSES)
@pytest.mark.parametrize("piece", [1, 3 * VOCAB, 10**6])
def test_loss_in_pieces_equals_the_whole(name, piece, monkeypatch):
    monkeypatch.setitem(losses.PIECE, "cpu", piece)
    target, draft = (tensor.view(1, ROWS, VOCAB) for tensor in pair())
    draft = draft.clone().requires_grad_()
    weight = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    found = losses.compare(losses.loss(name), target, draft, 0.7)
    wanted = losses.loss(name)(target / 0.7, draft / 0.7)
    torch.testing.assert_close(found, wanted)
    sums = [(weight * values).sum() for values in (found, wanted)]
    grads = [torch.autograd.grad(value, draft)[0] for value in sums]
    torch.testing.assert_close(*grads)


def test_bfloat16_logits_are_compared_in_float32():
    target, draft = (tensor.bfloat16() for tensor in pair())
    draft.requires_grad_()
    found = losses.compare(losses.overlap, target, draft)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, losses.overlap(target.float(), draft.float()))
    (gradient,) = torch.autograd.grad(found.sum(), draft)
    assert gradient.dtype == torch.bfloat16
    with torch.no_grad():
        assert not losses.compare(losses.overlap, target, draft).requires_grad
    assert losses.compare(losses.overlap, target[:0], draft[:0]).shape == (0,)


def test_the_weight_of_the_hybrid_is_held_fixed():
    target, draft = pair()
    weight = torch.exp(-3 * losses.overlap(target, draft))

    def fixed(q):
        kl, tv = (losses.loss(name)(target, q) for name in ("forward-kl", "tv"))
        return weight * kl + (1 - weight) * tv

    draft.requires_grad_()
    (found,) = torch.autograd.grad(losses.loss("hybrid")(target, draft).sum(), draft)
    (wanted,) = torch.autograd.grad(fixed(draft).sum(), draft)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "name", [name for name in losses.LOSSES if name != "cross-entropy"]
)
def test_loss_is_zero_at_the_target(name):
    target, _ = pair()
    draft = (target + 3.5).requires_grad_()  # the same distribution
    found = losses.loss(name)(target, draft)
    torch.testing.assert_close(found, torch.zeros_like(found))
    # those have a corner there
    if name not in ("tv", "log-acceptance", "hybrid", "kl-l1"):
        (gradient,) = torch.autograd.grad(found.sum(), draft)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize(
    "name", [name for name in losses.LOSSES if name != "reverse-kl"]
)
def test_forbidden_tokens_keep_the_loss_finite(name):
    target, draft = pair()
    target[:, 3] = -math.inf
    draft.requires_grad_()
    found = losses.loss(name)(target, draft)
    (gradient,) = torch.autograd.grad(found.sum(), draft)
    assert found.isfinite().all()
    assert gradient.isfinite().all()


def test_disjoint_distributions_have_a_gradient():
    target = torch.tensor([[200.0, 0.0]])
    draft = torch.tensor([[0.0, 200.0]], requires_grad=True)
    found = losses.loss("log-acceptance")(target, draft)
    (gradient,) = torch.autograd.grad(found.sum(), draft)
    torch.testing.assert_close(found, torch.tensor([200.0 - math.log(2)]))
    assert gradient[0, 0] < -0.1


def test_agreement_is_that_of_the_likeliest():
    target = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    draft = torch.tensor([[0.0, 9.0], [0.0, 9.0]])
    assert losses.agreement(target, draft).tolist() == [True, False]


def test_prefix_weights_by_hand():
    probabilities = torch.tensor([[1.0, 0.5, 0.0]], requires_grad=True)
    s = [1.0, 0.75, 0.5]
    prefixes = [s[0], s[0] * s[1], s[0] * s[1] * s[2]]
    weights = losses.prefix_weights(probabilities)
    wanted = torch.tensor([[sum(prefixes), sum(prefixes[1:]), prefixes[2]]])
    torch.testing.assert_close(weights, wanted)
    assert not weights.requires_grad


def test_unknown_loss_names_the_nearest():
    with pytest.raises(UnknownMethod, match="forward-kl"):
        losses.loss("forward_kl")
