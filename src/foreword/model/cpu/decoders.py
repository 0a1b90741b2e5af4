"""The CPU backend of encoder-decoders: their decoders in C, each sequence with the keys
of its own source.

The encoder runs once a sequence, alone and unpadded, by the model's own code, which
makes the keys and values of its states, too. These lie in pages of the pool, in the
rows of the layer that reads them. Reference: pool/seq2seq.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import architectures
from foreword.model.cpu.backend import CpuBackend
from foreword.model.cpu.cross import parts_of
from foreword.model.cpu.layout import LANES
from foreword.model.cpu.supported import SEQ2SEQ, unfit
from foreword.model.pool.plan import Read, SourceKeys, Span
from foreword.model.pool.seq2seq import source_id
from foreword.model.seq2seq import encoded, probe_source
from foreword.native import forward
from foreword.native.openmp import all_threads
from foreword.types import Encoded, Features

SCALED = {"T5": "scale_decoder_outputs", "UMT5": "tie_word_embeddings"}
"""Kinds that multiply the input of the LM head by hidden_size**-0.5, and the config
setting that says so.
"""


def refused(model: PreTrainedModel) -> str | None:
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


class DecoderBackend(CpuBackend):
    """A native backend whose sequences are what the decoder reads; each is opened, and
    then gets its source.
    """

    shares_embeddings = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        owned: bool = False,
    ) -> None:
        self.encoder: nn.Module = model.get_encoder()
        self._sources: dict[int, SourceKeys] = {}
        self._parts, self._biases = parts_of(model), list[Tensor]()
        super().__init__(model, owned=owned)

    @property
    def probe_source(self) -> Sequence[int] | Features:
        """The source under which it is checked and timed."""
        return probe_source(self._hf)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence, without the pages of earlier ones: keys and values of a
        decoder depend on its source.
        """
        self.close(id)
        return super().open(id, capacity)

    def close(self, id: int) -> None:
        super().close(id)
        self.pool.close(source_id(id))
        self._sources.pop(id, None)

    @torch.inference_mode()
    def encode(self, id: int, source: Sequence[int] | Encoded) -> None:
        """Run the encoder over the source of an open sequence, before its
        first read.
        """
        with all_threads():
            states = encoded(self.encoder, source)[0]
            made: list[Tensor] = []
            for layer in self._parts:
                keys_and_values = [part(states) for part in layer.source]
                made.append(torch.cat(keys_and_values, -1)[0].float())
        length = states.shape[1]
        self.pool.open(source_id(id), length)
        table = self.pool.extend(source_id(id), 0, length)
        pages, _ = table.pages.buffer_info()
        pool, _ = self.pool.addresses.buffer_info()
        for number, rows in enumerate(made):
            self._library.foreword_write(
                byref(self._model), number, pool, pages, length, rows.data_ptr()
            )
        self._sources[id] = SourceKeys(table, length)

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head, of scaled hidden states where the model
        scales them.
        """
        logits = super().lm_head(hidden)
        return logits * self._model.logit_scale if self._model.logit_scale else logits

    def _spans(self, reads: Sequence[Read], beyond: int = 0) -> tuple[Span, ...]:
        for read in reads:
            if read.id not in self._sources:
                raise ModelError(
                    f"cannot read sequence {read.id}: it has no source. Encode one "
                    "after opening it"
                )
        spans = super()._spans(reads, beyond)
        return tuple(
            replace(span, source=self._sources[span.read.id]) for span in spans
        )

    def _describe_span(self, described: forward.Span, span: Span) -> None:
        super()._describe_span(described, span)
        source = self._sources[span.read.id]
        described.source = source.length
        (described.source_pages, _) = source.table.pages.buffer_info()

    def _describe(self, model: PreTrainedModel) -> forward.Model:
        described, config = super()._describe(model), model.config
        if getattr(config, SCALED.get(_kind(model), ""), False):
            described.logit_scale = config.d_model**-0.5
        return described

    @torch.inference_mode()
    def _reach(self, length: int, spare: int = 0) -> None:
        """Compute the position biases of every distance up to `length`, too, by the
        model's own code.
        """
        before = self._reached
        super()._reach(length, spare)
        if self._reached == before or self._parts[0].compute_bias is None:
            return
        most, tables = self._reached, list[Tensor]()
        for described, layer in zip(
            self._model.layer[: self._model.layers], self._parts, strict=True
        ):
            if layer.compute_bias is not None:
                biases: Any = layer.compute_bias(1, most, past_seen_tokens=most - 1)
                # C reads whole vectors
                tables.append(F.pad(biases[0, :, 0].float().flatten(), (0, LANES)))
            described.bias = tables[-1].data_ptr()
        self._biases, self._model.distances = tables, most


def _kind(model: PreTrainedModel) -> str:
    return type(model).__name__.removesuffix("ForConditionalGeneration")
