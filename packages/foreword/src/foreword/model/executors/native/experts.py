"""The experts of a layer: their weights in the layout of csrc/layers/experts.c, and
back in the Hugging Face module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import BFloat16, Float
from torch import Tensor, nn

from foreword.model.architectures import block
from foreword.model.quantized.coded import Coded, Matrix, joined
from foreword.native import forward
from foreword.native.forward import LANES

MATRICES = ("gate_up_proj", "down_proj")
"""Matrices of all experts of a layer, [expert, outputs, depth]; gate rows come before
up rows.

Gpt-oss has [expert, depth, outputs], and alternates gate and up."""
SHARED = ("gate_proj", "up_proj", "down_proj")
"""Matrices of the shared expert, which every row uses."""


def consulted(model: nn.Module) -> bool:
    """Return whether any layer of the model has experts."""
    return any(name.endswith(".experts") for name, _ in model.named_modules())


def sizes(layer: Any) -> forward.Experts:
    """Return the sizes of the experts and how router weights are computed."""
    mlp = block(layer)
    router = _router(mlp)
    inner = _inner(mlp)
    shared = _shared(mlp)
    return forward.Experts(
        mlp.experts.num_experts,
        router.top_k,
        shared.in_features // inner if shared else 0,
        inner,
        sigmoid=hasattr(router, "routed_scaling_factor"),
        normed=getattr(router, "norm_topk_prob", True),
        gated=shared is not None,
        scale=getattr(router, "routed_scaling_factor", 1),
    )


def unfit(layer: Any) -> str | None:
    """Return why the C code does not compute experts like these; None if it does."""
    mlp = block(layer)
    inner, shared = _inner(mlp), _shared(mlp)
    hidden = mlp.experts.hidden_size if _alternates(mlp) else mlp.experts.hidden_dim
    if (
        inner % LANES
        or hidden % (2 * LANES)
        or (shared is not None and shared.in_features % inner)
    ):
        return "its experts have unusual sizes"
    return None


def products(layer: Any) -> dict[str, Float[Tensor, "outputs depth"]]:
    """Return the matrices of all experts, one after the other, and the router's, under
    the names of the C struct.

    A shared expert is cut into experts of the regular size; their outputs add up to its
    output.
    """
    mlp = block(layer)
    gate_up, down = (mlp.experts.get_parameter(name) for name in MATRICES)
    if _alternates(mlp):
        gate_up = gate_up.transpose(1, 2).unflatten(1, (-1, 2))
        down = down.transpose(1, 2)
        gate_up = gate_up.transpose(1, 2).flatten(1, 2)
    router = [_router(mlp).weight]
    if _shared(mlp) is not None:
        inner = _inner(mlp)
        gate, up, last = (
            mlp.shared_expert.get_submodule(name).weight for name in SHARED
        )
        pieces = torch.cat(
            [gate.unflatten(0, (-1, inner)), up.unflatten(0, (-1, inner))], dim=1
        )
        gate_up = torch.cat([gate_up, pieces])
        down = torch.cat([down, last.unflatten(1, (-1, inner)).transpose(0, 1)])
        router.append(mlp.shared_expert_gate.weight)
    halves = (half.unflatten(1, (-1, LANES)) for half in gate_up.chunk(2, dim=1))
    return {
        # "meta" if it comes from a file
        "router": torch.cat([weight.to(router[-1].device) for weight in router]),
        "gate_up": torch.stack([*halves], dim=2).flatten(0, 3),
        "down": down.flatten(0, 1),
    }


def parts(layer: Any) -> list[nn.Module]:
    """Return the experts, and the linear layers of a shared expert: all but
    the router.
    """
    mlp = block(layer)
    if _shared(mlp) is None:
        return [mlp.experts]
    shared = [mlp.shared_expert.get_submodule(name) for name in SHARED]
    return [mlp.experts, *shared]


def codes(layer: Any) -> dict[str, Callable[[], Coded]]:
    """Return functions that read the same matrices in quantized form, without the
    router. Empty unless the checkpoint holds all of them quantized, in groups that
    divide an expert.
    """
    mlp = block(layer)
    inner = _inner(block(layer))
    (own_part, *shared_parts) = parts(layer)
    experts: dict[str, Matrix] = getattr(own_part, "coded", {})
    shared = [
        cast(Matrix, part.coded) for part in shared_parts if hasattr(part, "coded")
    ]
    if len(experts) < len(MATRICES) or len(shared) < len(shared_parts):
        return {}
    if any(inner % matrix.read().group for matrix in shared):
        return {}

    def gate_up() -> Coded:
        pieces = [experts[MATRICES[0]].read()]
        if shared:
            # each piece of a shared expert: its gates, then its ups
            both = joined([matrix.read() for matrix in shared[:2]])
            order = torch.arange(len(both.codes)).view(2, -1, inner).transpose(0, 1)
            pieces.append(both.rows(order.flatten()))
        whole = joined(pieces)
        rows = torch.arange(len(whole.codes))
        return whole.rows(_panels(rows, inner, alternates=_alternates(mlp)))

    def down() -> Coded:
        pieces = [experts[MATRICES[1]].read()]
        if shared:
            last = shared[2].read()
            columns = torch.arange(inner * sizes(layer).shared).split(inner)
            parts = [last.columns(each) for each in columns]
            pieces += [part for part in parts if part is not None]
        return joined(pieces)

    return {"gate_up": gate_up, "down": down}


def vectors(layer: Any) -> dict[str, Float[Tensor, "numbers"]]:
    """Return the biases of experts and of the router, under the names of the C struct.

    `expert_bias` is added to router weights when experts are chosen.
    """
    mlp, result = block(layer), {}
    if (bias := getattr(mlp, "expert_bias", None)) is not None:
        result["expert_bias"] = bias
    if _alternates(mlp):
        part, router = mlp.experts, _router(mlp).bias
        result["up_bias"] = _panels(
            part.gate_up_proj_bias.flatten(), _inner(mlp), alternates=True
        )
        result["down_bias"] = part.down_proj_bias.flatten()
        result["router_bias"] = torch.cat(
            [router, router.new_zeros(-len(router) % LANES)]
        )
    return {name: vector.detach().float() for name, vector in result.items()}


def _panels(outputs: Tensor, inner: int, *, alternates: bool) -> Tensor:
    """Return the outputs of gates and ups in the order of panels: 16 gates, then their
    ups.
    """
    if alternates:
        return outputs.view(-1, inner // LANES, LANES, 2).transpose(2, 3).flatten()
    return outputs.view(-1, 2, inner // LANES, LANES).transpose(1, 2).flatten()


def drop(layer: Any) -> None:
    """Drop the weights of all experts, once they are packed."""
    experts = block(layer).experts
    for name in MATRICES:
        setattr(experts, name, frozen(experts.get_parameter(name).new_empty(0)))


def restore(
    layer: Any,
    gate_up: BFloat16[Tensor, "outputs hidden"],
    down: BFloat16[Tensor, "more inner"],
    router: BFloat16[Tensor, "experts hidden"],
) -> None:
    """Give the experts, and a shared expert, their weights back, from the rows of
    `products`.
    """
    mlp, (hidden, inner) = block(layer), (gate_up.shape[1], down.shape[1])
    count = mlp.experts.num_experts
    every = (
        gate_up.view(-1, inner // LANES, 2, LANES, hidden)
        .transpose(1, 2)
        .reshape(-1, 2, inner, hidden)
    )
    downs = down.view(len(every), hidden, inner)
    if _alternates(mlp):
        both = every[:count].transpose(1, 2).flatten(1, 2)
        mlp.experts.gate_up_proj = frozen(both.transpose(1, 2).contiguous())
        mlp.experts.down_proj = frozen(downs[:count].transpose(1, 2).contiguous())
        return
    mlp.experts.gate_up_proj = frozen(every[:count].flatten(1, 2).clone())
    mlp.experts.down_proj = frozen(downs[:count].clone())
    if _shared(mlp) is None:
        return
    gate, up = every[count:].transpose(0, 1).flatten(1, 2)
    weights = (gate, up, downs[count:].transpose(0, 1).flatten(1))
    for name, weight in zip(SHARED, weights, strict=True):
        mlp.shared_expert.get_submodule(name).weight = frozen(weight.clone())
    mlp.shared_expert_gate.weight = frozen(router[count : count + 1].clone())


def _router(mlp: Any) -> Any:
    return mlp.gate if hasattr(mlp, "gate") else mlp.router


def _inner(mlp: Any) -> int:
    return (
        mlp.experts.intermediate_size
        if _alternates(mlp)
        else mlp.experts.intermediate_dim
    )


def _alternates(mlp: Any) -> bool:
    """Return whether the experts have the layout of gpt-oss: gate and up weights
    alternate.
    """
    return hasattr(mlp.experts, "gate_up_proj_bias")


def _shared(mlp: Any) -> Any:
    """Return the down projection of the shared expert; None if there is none."""
    return mlp.shared_expert.down_proj if hasattr(mlp, "shared_expert") else None


def frozen(weight: Tensor) -> nn.Parameter:
    """Return a weight as a parameter that is not trained."""
    return nn.Parameter(weight, requires_grad=False)
