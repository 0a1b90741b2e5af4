"""k-sequential selection: judge all independently drawn siblings by one and the same test.

Knows trees; expects every child of a node to be drawn from the law that the first of them carries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.parts import in_use, normalised, stop_at, target_laws
from foreword.verify.without_replacement import without_replacement

Law = Float[Tensor, "batch vocab"]
HALVINGS = 30
"""Steps of the bisection: what is left of an interval of 64 is below the rounding of float32."""


def kseq(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a tree whose siblings may be equal (Sun et al., SpecTr, NeurIPS 2023, arXiv 2310.15141).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. Of k siblings drawn from q the first stays for which u < p(x)/(rho q(x)), rho being the smallest
    number for which what is left is a law. The walk goes on below all siblings that hold the same token, so that k
    whole drafts are k chains from the root. Chosen guesses have no law in common; they are judged one after the other.
    `noise.accept` and `noise.bonus` must be independent of each other and of the noise that drew the tokens.
    """
    if draft.probs is None:
        return without_replacement(weights, draft, noise)
    p, used = target_laws(weights), in_use(draft)
    row = torch.arange(len(p), device=p.device)
    end, left = torch.zeros_like(draft.count), p[:, 0]
    here = F.pad(torch.zeros_like(used), (1, 0), value=True)  # the columns of the text reached so far
    while True:
        siblings = used & here.gather(1, draft.parents.where(used, 0) + 1)
        asked = siblings.any(dim=1)
        if not asked.any():
            return stop_at(end, left, draft, noise)
        law, tokens = p[row, end], draft.tokens.where(siblings, 0)
        q = draft.probs[row, siblings.byte().argmax(dim=1)].to(p.dtype)
        chance, rest = selection(law, q, siblings.sum(dim=1))
        stays = siblings & (noise.accept[:, :-1] < chance.gather(1, tokens))
        found, first = stays.any(dim=1), stays.byte().argmax(dim=1)
        end = torch.where(found, first + 1, end)
        left = p[row, end].where(found[:, None], rest.where(asked[:, None], left))
        twins = siblings & found[:, None] & (tokens == tokens.gather(1, first[:, None]))
        here = F.pad(twins, (1, 0))


def selection(p: Law, q: Law, many: Int[Tensor, "batch"]) -> tuple[Law, Law]:
    """Chance that each token stays if it is drawn, and the law of the bonus (unnormalised) if none of `many` stays."""
    rho = smallest_rho(p, q, many)[:, None]
    kept, tiny = torch.minimum(q, p / rho), torch.finfo(p.dtype).tiny
    beta = kept.sum(dim=-1, keepdim=True)
    taken = kept * (any_of(beta, many[:, None]) / beta.clamp(min=tiny))
    return p / (rho * q.clamp(min=tiny)), normalised((p - taken).clamp(min=0), p)


def smallest_rho(p: Law, q: Law, many: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """The root in [1, many] of 1 - (1 - beta)^many = rho beta, where beta = sum of min(q, p/rho), from above.

    The left side falls and the right side grows with rho. Above the root the rule is still exact, below it is not.
    """
    low, high = torch.ones_like(p[:, 0]), many.clamp(min=1).to(p.dtype)
    for _ in range(HALVINGS):
        rho = (low + high) / 2
        beta = torch.minimum(q, p / rho[:, None]).sum(dim=-1)
        enough = any_of(beta, many) <= rho * beta
        low, high = torch.where(enough, low, rho), torch.where(enough, rho, high)
    return high


def any_of(beta: Tensor, many: Tensor) -> Tensor:
    """1 - (1 - beta)^many, the chance that one of many independent tries succeeds; exact for small chances."""
    return -torch.expm1(many * torch.log1p(-beta.clamp(max=1)))
