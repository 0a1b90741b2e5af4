"""Losses for training a drafter: distances of its distributions from the target's,
position by position.

Every loss takes raw logits of both, [..., vocab], and returns one number for each
position.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foreword_train.registry import LOSSES

Loss = Callable[
    [Float[Tensor, "*rows vocab"], Float[Tensor, "*rows vocab"]], Float[Tensor, "*rows"]
]
"""(target's logits, draft's logits) -> loss of each position, in nats where it is a
divergence; differentiable in the draft's. A target logit may be -inf, a draft logit may
not."""

LK_DECAY = 3.0
"""Rate at which the hybrid moves from divergence to overlap as acceptance rises (LK
losses, arXiv 2602.23881).
"""


def overlap(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return sum min(p, q), the acceptance probability of a sampled draft token
    (Leviathan et al. 2023, thm 3.5).
    """
    return _log_overlap(target, draft).exp()


def agreement(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Bool[Tensor, "*rows"]:
    """Return whether both have the same argmax: acceptance at temperature 0."""
    return target.argmax(-1) == draft.argmax(-1)


def forward_kl(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return KL(p || q), over every token the target may emit (Hinton et al. 2015)."""
    return F.kl_div(draft.log_softmax(-1), target.softmax(-1), reduction="none").sum(-1)


def reverse_kl(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return KL(q || p), which avoids what is unlikely under p (Gu et al. 2024:
    MiniLLM). Infinite where p is 0.
    """
    log_q = draft.log_softmax(-1)
    return (log_q.exp() * (log_q - target.log_softmax(-1))).sum(-1)


def total_variation(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return 1 - sum min(p, q), the rejection probability (DistillSpec, section 3)."""
    return 1 - overlap(target, draft)


def log_acceptance(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return -log sum min(p, q), whose gradient does not vanish where little is
    accepted (arXiv 2602.23881).
    """
    return -_log_overlap(target, draft)


def hybrid(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return λ KL(p || q) + (1 - λ) TV with λ = exp(-3 α), α the overlap, detached (LK
    hybrid, arXiv 2602.23881).

    Divergence dominates while little is accepted, overlap once much is.
    """
    accepted = overlap(target, draft)
    weight = torch.exp(-LK_DECAY * accepted.detach())
    return weight * forward_kl(target, draft) + (1 - weight) * (1 - accepted)


def divergence_and_distance(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return 0.1 KL(p || q) + 0.9 sum |p - q|: some divergence, so that rejected tokens
    keep a gradient.

    As in arXiv 2607.05147, whose cross-entropy of drawn tokens is KL on average, up to
    a constant.
    """
    return 0.1 * forward_kl(target, draft) + 0.9 * (
        target.softmax(-1) - draft.softmax(-1)
    ).abs().sum(-1)


def cross_entropy(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    """Return -log q of the target's argmax, the loss that matches temperature 0."""
    return (
        -draft.log_softmax(-1).gather(-1, target.argmax(-1, keepdim=True)).squeeze(-1)
    )


def prefix_weights(
    probabilities: Float[Tensor, "*rows position"], floor: float = 0.5
) -> Float[Tensor, "*rows position"]:
    """Return the weight of each position of a drafted block: its share in the expected
    accepted length (D-PACE).

    `probabilities` are q(x*), the draft's own probabilities of the correct tokens. With
    s = (1 - floor) q + floor and P_k = s_1 ... s_k, position k weighs P_k + P_{k+1} +
    ..., because all later positions depend on it. Detached.
    """
    prefixes = ((1 - floor) * probabilities.detach() + floor).cumprod(-1)
    return prefixes.flip(-1).cumsum(-1).flip(-1)


def _log_overlap(
    target: Float[Tensor, "*rows vocab"], draft: Float[Tensor, "*rows vocab"]
) -> Float[Tensor, "*rows"]:
    # In logs, so that an overlap that underflows keeps its gradient.
    return torch.minimum(target.log_softmax(-1), draft.log_softmax(-1)).logsumexp(-1)


PIECE = {"cpu": 2**20}
"""Logits per piece, by device type: 4 MB in float32, which fits a cache."""
LARGE = 2**26
"""Logits per piece on other devices."""


def compare(
    loss: Loss,
    target: Float[Tensor, "*rows vocab"],
    draft: Float[Tensor, "*rows vocab"],
    temperature: float = 1.0,
) -> Float[Tensor, "*rows"]:
    """Return a loss, or `overlap`, of both distributions at a temperature, in float32
    for any dtype of logits.

    Equal to loss(target / temperature, draft / temperature), computed a few rows at a
    time together with the gradient: this avoids a dozen tensors as large as all logits.
    Differentiable once, in the draft's logits.
    """
    return _InPieces.apply(target.detach(), draft, loss, temperature)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, target: Tensor, draft: Tensor, loss: Loss, temperature: float
    ) -> Tensor:
        vocab = draft.shape[-1]
        expected, logits = target.reshape(-1, vocab), draft.detach().reshape(-1, vocab)
        differentiate = ctx.needs_input_grad[1]
        gradient = torch.empty_like(logits) if differentiate else None
        rows = max(1, PIECE.get(draft.device.type, LARGE) // vocab)
        parts = []
        for start in range(0, len(logits), rows):
            span = slice(start, start + rows)
            with torch.set_grad_enabled(differentiate):
                part = logits[span].requires_grad_(differentiate)
                values = loss(
                    _wide(expected[span]) / temperature, _wide(part) / temperature
                )
            if gradient is not None:
                gradient[span] = torch.autograd.grad(
                    values, part, torch.ones_like(values)
                )[0]
            parts.append(values.detach())
        ctx.save_for_backward(
            *(() if gradient is None else (gradient.view(draft.shape),))
        )
        return (
            torch.cat(parts).view(draft.shape[:-1]) if parts else _wide(draft).sum(-1)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return None, gradient * grads[0][..., None].to(gradient.dtype), None, None


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def loss(name: str) -> Loss:
    """Return the loss of that name. Raises UnknownMethod with the nearest name."""
    return LOSSES.find(name)
