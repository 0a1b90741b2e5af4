"""Unpacking: restore a Hugging Face model's dropped weights from the packed panels of
csrc/forward.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import BFloat16
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.executors.native import experts
from foreword.model.executors.native.layout import LANES, PANEL, matrices_of, parts_of
from foreword.native import forward


def unpacked(
    packed: BFloat16[Tensor, "outputs depth"],
) -> BFloat16[Tensor, "outputs depth"]:
    """Return the rows of panels [depth / 2][32][2]; the last may have 16 outputs."""
    depth, panels = packed.shape[1], packed.split(PANEL)
    return torch.cat(
        [
            panel.view(depth // 2, len(panel), 2).transpose(0, 1).flatten(1)
            for panel in panels
        ]
    )


def restore(
    hf: PreTrainedModel, described: forward.Model, held: Sequence[Tensor], *, tied: bool
) -> None:
    """Give every linear layer of `hf` its weight back, from the packed ones in `held`
    that `described` points to, and embeddings that were tied to them. `tied`: whether
    the LM head has the weight of the embeddings."""
    by_address = {tensor.data_ptr(): tensor for tensor in held}
    for layer, packed in zip(
        parts_of(hf), described.layer[: described.layers], strict=True
    ):
        _restore_layer(layer, packed, described, by_address)
    head = unpacked(by_address[described.head])[: described.vocab]
    embedding: Any = hf.get_input_embeddings()
    if not described.embedding:  # it was tied
        embedding.weight = experts.frozen(head)
    architectures.lm_head(hf).weight = (
        embedding.weight if tied else experts.frozen(head)
    )


@contextmanager
def lent(
    hf: PreTrainedModel,
    described: forward.Model,
    held: Sequence[Tensor],
    embed: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    """Let the own code of a model without these weights run while inside: a part has
    its weights while it runs.

    Of weights in 8 bits only embeddings are lent, which stay in 16: enough to run it up
    to its language model.
    """
    by_address = {tensor.data_ptr(): tensor for tensor in held}
    embedding: Any = hf.get_input_embeddings()
    hooks = ExitStack()

    def lend(part: nn.Module, give: Callable[[], None]) -> None:
        hooks.callback(part.register_forward_pre_hook(lambda *_: give()).remove)
        hooks.callback(part.register_forward_hook(lambda *_: drop(part)).remove)

    def drop(part: nn.Module) -> None:
        architectures.drop_weights(part)
        if architectures.routed(part):
            experts.drop(part)

    def give_head() -> None:
        head.weight = experts.frozen(
            unpacked(by_address[described.head])[: described.vocab]
        )

    head = architectures.lm_head(hf)
    with hooks:
        for layer, packed in zip(
            parts_of(hf), described.layer[: described.layers], strict=True
        ):
            if described.coding == forward.WHOLE:
                lend(
                    layer, partial(_restore_layer, layer, packed, described, by_address)
                )
        if described.coding == forward.WHOLE:
            lend(head, give_head)
        if not described.embedding:  # the backend looks it up
            embedding.forward = embed
            hooks.callback(delattr, embedding, "forward")
        yield


def _restore_layer(
    layer: Any, packed: Any, described: forward.Model, by_address: Mapping[int, Tensor]
) -> None:
    weights = {
        name: unpacked(by_address[getattr(packed, name)])
        for name in matrices_of(packed)
    }
    if packed.router:
        router = unpacked(by_address[packed.router])
        experts.restore(layer, weights.pop("gate_up"), weights.pop("down"), router)
    elif not described.plain:
        # half of a panel each
        pairs = weights["gate_up"].view(-1, 2, LANES, described.hidden)
        weights["gate_up"] = pairs.transpose(0, 1).reshape(-1, described.hidden)
    if (order := architectures.order(layer)) is not None:
        weights["qkv"] = weights["qkv"][order.argsort()]
    parts = architectures.linears(layer)
    for name, weight in weights.items():
        _fill(parts[name], weight)


def _fill(layers: Sequence[nn.Module], rows: Tensor) -> None:
    for layer, weight in zip(
        layers,
        rows.split([architectures.shape(layer)[0] for layer in layers]),
        strict=True,
    ):
        architectures.fill(layer, weight)
