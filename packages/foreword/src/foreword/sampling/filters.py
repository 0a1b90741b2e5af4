"""Filters of the next-token distribution: temperature, top_k, top_p (Holtzman et al.
2020), min_p, typical_p.

`_filtered_all` is the reference; `among_best` gives the same from a few candidates,
which C finds in one pass.

Probabilities are summed as integers, so that neither order nor length moves a
threshold. Rows are independent.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.native import sampling
from foreword.sampling import FORBIDDEN, Logits
from foreword.types import SamplingParams

ONE = 2**44
"""Probability 1 as an integer."""


def nucleus(scores: Logits, top_p: float) -> Logits:
    """Keep the likeliest tokens whose probability reaches `top_p`: the reference."""
    ordered = scores.sort(descending=True)
    probabilities = scores.softmax(-1, dtype=torch.float32)
    masses = fixed(probabilities.gather(1, ordered.indices)).cumsum(-1)
    return kept(scores, ordered.values, masses, top_p)


def kept(
    scores: Logits,
    best: Float[Tensor, "rows best"],
    masses: Int[Tensor, "rows best"],
    top_p: float,
) -> Logits:
    """Forbid the tokens below the one where `masses`, cumulative over `best`
    (descending), reach `top_p`.

    Of tokens that tie at the cut the last ids stay, as many as needed (as with
    transformers' ascending sort).
    """
    before = (masses < goal(top_p)).sum(-1, keepdim=True)
    count = (before + 1).clamp_(max=best.shape[-1])
    cut = best.gather(1, count - 1)
    tied = scores == cut
    above = (scores > cut).sum(-1, keepdim=True)
    spare = tied.sum(-1, keepdim=True) + above - count
    dropped = scores < cut
    if bool((spare > 0).any()):
        dropped |= tied & (tied.cumsum(-1) <= spare)
    return scores.masked_fill(dropped, -math.inf)


def fixed(values: Float[Tensor, "rows any"]) -> Int[Tensor, "rows any"]:
    """Return non-negative floats as multiples of 1 / ONE, Int64."""
    return (values.double() * ONE).long()


def goal(mass: float) -> int:
    """Return a probability as a multiple of 1 / ONE, at least 1."""
    return max(1, round(mass * ONE))


MOST = 256
"""Tokens. Most candidates searched."""
SPARE = 8
"""Tokens searched beyond `top_k`: there are ties if the last equals the k-th."""


def fit(params: SamplingParams, vocab: int) -> bool:
    """Return whether `among_best` can serve these parameters, which keep few tokens."""
    return (
        0 < params.top_k <= MOST
        and params.top_k + SPARE < vocab
        and params.typical_p >= 1
    )


def among_best(
    scores: Logits, params: SamplingParams
) -> tuple[Logits, Bool[Tensor, "rows"]]:
    """Return log-weights after temperature, `top_k`, `top_p` and `min_p`, and the rows
    this cannot decide.

    Undecided rows have ties or too few tokens.
    """
    values, ids = _best(scores, params.top_k + SPARE)
    values = values / params.temperature
    cut = values[:, params.top_k - 1 : params.top_k]
    undecided_rows = (values[:, -1:] == cut) | (values[:, -1:] == -math.inf)
    values = values.masked_fill(values < cut, -math.inf)
    if params.top_p < 1:
        values = nucleus(values, params.top_p)
    if params.min_p > 0:
        floor = values[:, :1] + math.log(params.min_p)
        values = values.masked_fill(values < floor, -math.inf)
    result = torch.full_like(scores, -math.inf).scatter_(1, ids, values)
    return result, undecided_rows.squeeze(1)


def top_p(scores: Logits, share: float, among: int = MOST) -> Logits:
    """Return `nucleus(scores, share)`, sorting only rows that are hard to decide."""
    if among * 8 > scores.shape[-1]:
        return nucleus(scores, share)
    values, ids = _best(scores, among)
    probabilities = scores.softmax(-1, dtype=torch.float32)
    masses = fixed(probabilities.gather(1, ids)).cumsum(-1)
    result = kept(scores, values, masses, share)
    undecided = (masses[:, -1] < goal(share)).nonzero().squeeze(1)
    if len(undecided):
        result[undecided] = nucleus(scores[undecided], share)
    return result


def _best(
    scores: Logits, most: int
) -> tuple[Float[Tensor, "rows most"], Int[Tensor, "rows most"]]:
    """Return the likeliest tokens of each row, best first; of equals the first id."""
    from_c = sampling.best(scores, most) if scores.device.type == "cpu" else None
    if from_c is not None:
        return from_c
    ids, _ = scores.topk(most).indices.sort(dim=-1)
    values, order = scores.gather(1, ids).sort(
        dim=-1,
        descending=True,
        stable=True,
    )
    return values, ids.gather(1, order)


def filtered(scores: Logits, params: SamplingParams) -> Logits:
    """Apply temperature and the filters; a neutral parameter costs nothing."""
    if not fit(params, scores.shape[-1]):
        return _filtered_all(scores, params)
    result, undecided_rows = among_best(scores, params)
    if bool(undecided_rows.any()):
        result[undecided_rows] = _filtered_all(scores[undecided_rows], params)
    return result


def _filtered_all(scores: Logits, params: SamplingParams) -> Logits:
    """Apply all filters over the whole vocabulary: the reference."""
    if params.temperature != 1:
        scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        least = scores.topk(params.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, FORBIDDEN)
    if params.top_p < 1:
        scores = top_p(scores, params.top_p)
    if params.min_p > 0:
        floor = scores.amax(-1, keepdim=True) + math.log(params.min_p)
        scores = scores.masked_fill(scores < floor, FORBIDDEN)
    return _typical(scores, params.typical_p) if params.typical_p < 1 else scores


def _typical(scores: Logits, mass: float) -> Logits:
    """Keep tokens whose surprise is near the entropy (Meister et al. 2022, §4)."""
    distributions = scores.log_softmax(-1)
    masses = distributions.exp()
    surprise = torch.where(masses > 0, -distributions * masses, 0.0)
    entropy = (fixed(surprise).sum(-1, keepdim=True).double() / ONE).float()
    distance = (-distributions - entropy).abs()
    ordered, order = distance.sort(stable=True)
    reached = fixed(masses.gather(1, order)).cumsum(-1)
    count = (reached < goal(mass)).sum(-1, keepdim=True)
    cut = ordered.gather(1, count.clamp_(max=scores.shape[-1] - 1))
    return scores.masked_fill(distance > cut, FORBIDDEN)
