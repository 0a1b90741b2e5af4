"""Provides the sums of what the ranks computed, in the order of the ranks.

The all-reduce of a library adds up an element in an order that depends on where it lies
in the tensor, so the bits of a row would depend on the other rows. Two ranks have one
order only; three or more have several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers.distributed import tensor_parallel

ORDERED = {"rowwise": "foreword_rowwise", "moe_tp_experts": "foreword_experts"}
"""A style of transformers' plans -> ours, with the sums in order."""


class OrderedRowwise(tensor_parallel.RowwiseParallel):
    """A linear layer whose inputs are split, in inference."""

    def transform_output_post_forward(
        self, module: Any, output: Tensor, mesh: Any
    ) -> Tensor:
        total = summed(output, mesh.get_group())
        bias = module._parameters.get("bias")
        if bias is None:
            return total
        return total + getattr(bias, "to_local", lambda: bias)()


class OrderedExperts(tensor_parallel.MoeExpertsParallel):
    """Experts split among the ranks, in inference."""

    def transform_output_post_forward(
        self, module: Any, output: Tensor, mesh: Any
    ) -> Tensor:
        return summed(output, mesh.get_group())


styles: Any = vars(tensor_parallel)["ALL_PARALLEL_STYLES"]
styles.register(ORDERED["rowwise"], OrderedRowwise())
styles.register(ORDERED["moe_tp_experts"], OrderedExperts())


def summed(part: Tensor, group: Any) -> Tensor:
    """Return the sum of the parts of all ranks, added up from rank 0 on."""
    own = part.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    return total


def ordered(plan: Mapping[str, str]) -> dict[str, str]:
    """Return a plan of transformers with the sums in order."""
    return {name: ORDERED.get(style, style) for name, style in plan.items()}
