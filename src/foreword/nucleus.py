"""Nucleus sampling (`top_p`; Holtzman et al. 2020): the likeliest tokens, as few as together reach a probability.

Probabilities are added up as integers, so that neither order nor length can move a threshold. Pure; each row by itself.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "rows vocab"]

ONE = 2**44
"""Probability 1 as an integer."""


def nucleus(scores: Logits, top_p: float) -> Logits:
    """The plain definition: keep the smallest set of likeliest tokens whose probability reaches `top_p`."""
    ordered = scores.sort(descending=True)
    masses = fixed(scores.softmax(-1, dtype=torch.float32).gather(1, ordered.indices)).cumsum(-1)
    return kept(scores, ordered.values, masses, top_p)


def kept(scores: Logits, best: Float[Tensor, "rows best"], masses: Int[Tensor, "rows best"], top_p: float) -> Logits:
    """Cut below the token where `masses`, cumulative over `best` (descending), reach `top_p`.

    Of tokens that tie at the cut the last ids stay, as many as are needed (what transformers' ascending sort leaves).
    """
    count = ((masses < goal(top_p)).sum(-1, keepdim=True) + 1).clamp_(max=best.shape[-1])
    cut = best.gather(1, count - 1)
    tied = scores == cut
    spare = tied.sum(-1, keepdim=True) + (scores > cut).sum(-1, keepdim=True) - count
    dropped = scores < cut
    if bool((spare > 0).any()):
        dropped |= tied & (tied.cumsum(-1) <= spare)
    return scores.masked_fill(dropped, -math.inf)


def fixed(values: Float[Tensor, "rows any"]) -> Int[Tensor, "rows any"]:
    """Non-negative floats as multiples of 1 / ONE, Int64."""
    return (values.double() * ONE).long()


def goal(mass: float) -> int:
    """A probability as a multiple of 1 / ONE, at least one."""
    return max(1, round(mass * ONE))
