"""k-sequential selection: verify independently sampled siblings with one shared test.

Every child of a node must be sampled from the distribution of its first child.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.rejection import given_text
from foreword.verify.residual import in_use, normalised, stop_at, target_distributions
from foreword.verify.without_replacement import without_replacement

Probs = Float[Tensor, "batch vocab"]
HALVINGS = 30
"""Bisection steps: reduce an interval of 64 below the rounding of float32."""


def kseq(
    weights: Float[Tensor, "batch column vocab"],
    draft: Draft,
    noise: Noise,
) -> Verdict:
    """Verify a tree whose siblings may be equal (Sun et al., SpecTr, NeurIPS 2023,
    arXiv 2310.15141).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. Of k siblings sampled from q the
    first with u < p(x)/(rho q(x)) is accepted; rho is the smallest number for which the
    residual is a distribution. The walk continues below all siblings with the same
    token, so k whole drafts are k chains from the root. Chosen draft tokens share no
    distribution and are verified one by one. `noise.accept` and `noise.bonus` must be
    independent of each other and of the drafter's noise.
    """
    if draft.probs is None:
        return without_replacement(weights, draft, noise)
    p = target_distributions(weights)
    used = in_use(draft)
    row = torch.arange(len(p), device=p.device)
    end = torch.zeros_like(draft.count)
    left = p[:, 0]
    # columns where the walk is: several if siblings have the same token
    here = F.pad(torch.zeros_like(used), (1, 0), value=True)
    while True:
        siblings = used & here.gather(1, draft.parents.where(used, 0) + 1)
        active = siblings.any(dim=1)
        if not active.any():
            return stop_at(end, left, draft, noise)
        distribution = p[row, end]
        tokens = draft.tokens.where(siblings, 0)
        # all siblings share one distribution: take it from the first
        q = draft.probs[row, siblings.byte().argmax(dim=1)].to(p.dtype)
        probability, rest = selection(distribution, q, siblings.sum(dim=1))
        passes = siblings & (noise.accept[:, :-1] < probability.gather(1, tokens))
        accepted = passes.any(dim=1)
        first = passes.byte().argmax(dim=1)
        end = torch.where(accepted, first + 1, end)
        rejected = rest.where(active[:, None], left)
        left = p[row, end].where(accepted[:, None], rejected)
        alike = tokens == tokens.gather(1, first[:, None])
        twins = siblings & accepted[:, None] & alike
        here = F.pad(twins, (1, 0))


def selection(
    p: Probs,
    q: Probs,
    count: Int[Tensor, "batch"],
) -> tuple[Probs, Probs]:
    """Return each drawn token's acceptance probability, and the bonus distribution."""
    rho = smallest_rho(p, q, count)[:, None]
    overlap = torch.minimum(q, p / rho)
    tiny = torch.finfo(p.dtype).tiny
    beta = overlap.sum(dim=-1, keepdim=True)
    taken = overlap * (any_of(beta, count[:, None]) / beta.clamp(min=tiny))
    probability = p / (rho * q.clamp(min=tiny))
    return probability, normalised((p - taken).clamp(min=0), p)


def smallest_rho(
    p: Probs, q: Probs, count: Int[Tensor, "batch"]
) -> Float[Tensor, "batch"]:
    """Return the root rho in [1, count] of 1 - (1 - beta)^count = rho beta, beta = sum
    of min(q, p/rho), from above.

    The left side falls and the right side grows with rho. The rule is exact above the
    root and biased below it.
    """
    low = torch.ones_like(p[:, 0])
    high = count.clamp(min=1).to(p.dtype)
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        beta = torch.minimum(q, p / rho[:, None]).sum(dim=-1)
        enough = any_of(beta, count) <= rho * beta
        low = torch.where(enough, low, rho)
        high = torch.where(enough, rho, high)
    return high


def any_of(beta: Tensor, count: Tensor) -> Tensor:
    """Return 1 - (1 - beta)^count: that any of `count` tries succeeds, accurately."""
    return -torch.expm1(count * torch.log1p(-beta.clamp(max=1)))


RULE = Rule(name="kseq", verify=kseq, given_text=given_text, lists="independent")
