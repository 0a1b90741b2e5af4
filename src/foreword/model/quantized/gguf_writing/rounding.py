"""Provides the scales of groups of weights, chosen by weighted least squares over
candidates.

The idea is that of make_qkx2_quants and make_qx_quants in ggml-org/ggml,
src/ggml-quants.c: a scale that clips or stretches the largest weight a little rounds
the others better. Each candidate gives codes; the best scale for those codes has a
closed form.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

Groups = Float32[Tensor, "groups inputs"]
Numbers = Float32[Tensor, "groups 1"]

STEP = 0.2
"""Codes. Distance between the ranges of neighbouring candidates."""
BELOW = 5
"""Candidates whose range has fewer codes than the type, and as many with more. Twice
as many, half as far apart, find scales no better (KL divergence of the bundled target).
"""
TINY = 1e-30
"""Smallest divisor: a group of zeros keeps scale 0."""


def affine(groups: Groups, most: int) -> tuple[Numbers, Numbers]:
    """Return the scale and the lowest weight of each group, both as numbers that are
    not negative: weight = scale * code - lowest, code in [0, most].

    A weight counts as much as its size and the mean size of its group.
    """
    size = groups.square().mean(-1, keepdim=True)
    counts = groups.abs() + size.sqrt()
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    span = groups.amax(-1, keepdim=True) - low
    span = span.clamp(min=TINY)
    raised = groups - low
    total = _sum(counts).clamp(min=TINY)
    linear = _sum(counts * groups)
    gain = torch.full_like(low, -torch.inf)
    scale = torch.zeros_like(low)
    offset = torch.zeros_like(low)
    for step in range(-BELOW, BELOW + 1):
        codes = raised * ((most + step * STEP) / span)
        codes = codes.round_().clamp_(0, most)
        weighed = counts * codes
        first = _sum(weighed)
        second = _sum(weighed * codes).clamp(min=TINY)
        product = _sum(weighed * groups)
        spread = total * second - first.square()
        spread = spread.clamp(min=TINY)
        slope = total * product - linear * first
        start = second * linear - first * product
        slope = slope / spread
        start = start / spread
        # no code stands for more than a lowest weight of 0
        above = start > 0
        slope = torch.where(above, product / second, slope)
        slope = slope.clamp(min=0)
        start = start.clamp(max=0)
        found = slope * (2 * product - slope * second)
        found += start * (2 * linear - start * total)
        found -= 2 * slope * start * first
        better = found > gain
        gain = torch.where(better, found, gain)
        scale = torch.where(better, slope, scale)
        offset = torch.where(better, -start, offset)
    return scale, offset


def symmetric(groups: Groups, half: int) -> Numbers:
    """Return the scale of each group, of either sign: weight = scale * code, code in
    [-half, half - 1].

    The largest weight may be rounded to -half, the code without a counterpart. A weight
    counts as much as its square.
    """
    counts = groups.square()
    place = groups.abs().argmax(-1, keepdim=True)
    top = groups.gather(-1, place)
    top = torch.where(top.abs() < TINY, TINY, top)
    gain = torch.zeros_like(top)
    scale = torch.zeros_like(top)
    for step in range(-BELOW, BELOW + 1):
        codes = groups * (-(half + step * STEP) / top)
        codes = codes.round_().clamp_(-half, half - 1)
        weighed = counts * codes
        second = _sum(weighed * codes).clamp(min=TINY)
        product = _sum(weighed * groups)
        found = product.square() / second
        better = found > gain
        gain = torch.where(better, found, gain)
        scale = torch.where(better, product / second, scale)
    return scale


def _sum(numbers: Groups) -> Numbers:
    return numbers.sum(-1, keepdim=True)
