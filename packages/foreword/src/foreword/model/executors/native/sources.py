"""The decoder of an encoder-decoder in the C forward, and the sources of its open
sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model import architectures
from foreword.model.encoder import EncoderMemory
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.layout import parts_of
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.supported import SEQ2SEQ, unfit
from foreword.model.kv.pages import PageTable
from foreword.model.kv.reads import Span
from foreword.native import forward

SCALED = {"T5": "scale_decoder_outputs", "UMT5": "tie_word_embeddings"}
"""Kinds that multiply the input of the LM head by hidden_size**-0.5, and the config
setting that says so.
"""


def refused_decoder(model: PreTrainedModel) -> str | None:
    """Return why the C code cannot run the decoder of this encoder-decoder; None if it
    can.
    """
    kind = _kind(model)
    if kind not in SEQ2SEQ:
        return f"it does not run the decoder of {kind}"
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return "it is made for bfloat16 on CPU"
    layers, head = parts_of(model), architectures.lm_head(model)
    parts = [
        part
        for layer in layers
        for parts in architectures.linears(layer).values()
        for part in parts
    ]
    if not all(map(architectures.ordinary, [*parts, head])):
        return "its linear layers are not plain nn.Linear layers"
    if any(part.weight.dtype != torch.bfloat16 for part in parts):
        return "some of its weights are not bfloat16"
    if any(
        layer.compute_bias is not None and layer.self_attn.scaling != 1
        for layer in layers
    ):
        return "it scales the scores that it adds position biases to"
    return unfit(model.config, layers[0], head)


def head_scale(model: PreTrainedModel) -> float:
    """Return the factor of hidden states before the LM head; 0 if there is none."""
    config = model.config
    if getattr(config, SCALED.get(_kind(model), ""), False):
        return config.d_model**-0.5
    return 0


class NativeSources(EncoderMemory, NativeMemory):
    """The sources of open sequences of a C forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._parts = parts_of(model)

    def describe_span(self, described: forward.Span, span: Span) -> None:
        assert span.source is not None
        described.source = span.source.length
        (described.source_pages, _) = span.source.table.pages.buffer_info()

    def _keys_and_values(self, states: Any) -> Sequence[Tensor]:
        made: list[Tensor] = []
        for layer in self._parts:
            keys_and_values = [part(states[0]) for part in layer.source]
            made.append(torch.cat(keys_and_values, -1)[0].float())
        return made

    def _write(
        self,
        executor: NativeExecutor,
        table: PageTable,
        length: int,
        layers: Sequence[Tensor],
    ) -> None:
        pages, _ = table.pages.buffer_info()
        pool, _ = executor.pool.addresses.buffer_info()
        for number, rows in enumerate(layers):
            executor.library.foreword_write(
                byref(executor.model), number, pool, pages, length, rows.data_ptr()
            )


def _kind(model: PreTrainedModel) -> str:
    return type(model).__name__.removesuffix("ForConditionalGeneration")
