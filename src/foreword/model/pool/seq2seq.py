"""Provides the pool backend of encoder-decoders: decoders packed in one forward, each
with the keys of its own source.

The encoder runs once a sequence, alone and unpadded, by the model's own attention. The
keys and values that the decoder makes of its states lie in pages of the same pool, in
the rows of the layer that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from foreword.errors import ModelError
from foreword.model.backend import Mode
from foreword.model.pool.attention import NAME
from foreword.model.pool.backend import PoolBackend
from foreword.model.pool.packed_linear import unpacked
from foreword.model.pool.packing import Packed
from foreword.model.pool.plan import Plan, Read, SourceKeys
from foreword.model.pool.positions import Positions
from foreword.model.seq2seq import encoded, probe_source
from foreword.native.openmp import all_threads
from foreword.types import Encoded, Features


@dataclass(slots=True)
class Sources:
    """The sources of open sequences, and what every forward is given in their place."""

    rows: dict[int, SourceKeys] = field(default_factory=dict)
    """By sequence."""
    cross: tuple[Tensor, ...] = ()
    """One key per layer, a placeholder for the keys of all sources."""
    options: dict[str, Any] = field(default_factory=dict)
    """An encoder's output, and a cache that stores nothing and holds `cross`."""


class Seq2SeqPoolBackend(PoolBackend):
    """A pool backend whose sequences are what the decoder reads; each is opened, and
    then gets its source.
    """

    def __init__(
        self, model: PreTrainedModel, mode: Mode = Mode.TREE, *, own: str
    ) -> None:
        """`own`: the model's own attention, under which the encoder runs."""
        super().__init__(model, mode)
        self._own = own
        self.encoder: nn.Module = model.get_encoder()
        self._tiled = any(
            unpacked(part)
            for part in (model.get_decoder(), model.get_output_embeddings())
            if part
        )
        self._sources, self._positions = Sources(), Positions(model)

    @property
    def probe_source(self) -> Sequence[int] | Features:
        """The source under which it is checked and timed."""
        return probe_source(self._model)

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
        super().close(source_id(id))
        self._sources.rows.pop(id, None)

    @torch.inference_mode()
    def encode(self, id: int, source: Sequence[int] | Encoded) -> None:
        """Run the encoder over the source of an open sequence, before its
        first read.
        """
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        with all_threads(), self.own_attention():
            states = encoded(self.encoder, source)
            # any token
            first = torch.zeros(1, 1, dtype=torch.long, device=self._device)
            self._model(
                encoder_outputs=states,
                decoder_input_ids=first,
                past_key_values=cache,
                use_cache=True,
            )
        made: list[Any] = list(cache.cross_attention_cache.layers)
        length = made[0].keys.shape[2]
        self.pool.open(source_id(id), length)
        table = self.pool.extend(source_id(id), 0, length)
        rows = torch.tensor(table.rows(0, length), device=self._device)
        for number, layer in enumerate(made):
            self.pool.write(
                number,
                layer.keys[0].transpose(0, 1),
                layer.values[0].transpose(0, 1),
                rows,
            )
        self._sources.rows[id] = SourceKeys(table, length)
        if not self._sources.options:
            self._stand_in(states, made)

    def _stand_in(self, states: Any, made: Sequence[Any]) -> None:
        """Keep what every forward is given in place of the encoder's output and of a
        cache.
        """
        cross = DynamicCache()
        pairs = [
            cross.update(one.keys[:, :, :1].clone(), one.values[:, :, :1].clone(), i)
            for i, one in enumerate(made)
        ]
        self._sources.cross = tuple(key for key, _ in pairs)
        self._sources.options = {
            "encoder_outputs": type(states)(
                **{**states, "last_hidden_state": states[0][:, :1].clone()}
            ),
            "past_key_values": EncoderDecoderCache(_NoCache(), cross),
        }

    def _pack(self, reads: Sequence[Read]) -> Packed:
        for read in reads:
            if read.id not in self._sources.rows:
                raise ModelError(
                    f"cannot read sequence {read.id}: it has no source. Encode one "
                    "after opening it"
                )
        rows = super()._pack(reads)
        spans = tuple(
            replace(span, source=self._sources.rows[span.read.id])
            for span in rows.plan.spans
        )
        return replace(
            rows, plan=replace(rows.plan, spans=spans, cross=self._sources.cross)
        )

    def _logits(
        self, packed: Int[Tensor, "2 rows"], kept: list[int], plan: Plan
    ) -> Float[Tensor, "kept vocab"]:
        with self._positions.given(packed[1]) as options:
            # without it, Whisper drops the stand-in cache
            options |= self._sources.options | {"use_cache": True}
            output = self._model(decoder_input_ids=packed[:1], plan=plan, **options)
        return output.logits[0, kept]

    @contextmanager
    def own_attention(self) -> Iterator[None]:
        """Give the model its own attention for a while."""
        self._model.set_attn_implementation(self._own)
        try:
            yield
        finally:
            self._model.set_attn_implementation(NAME)


def source_id(id: int) -> int:
    """Return the id under which the pool holds the source of a sequence; no sequence
    has it.
    """
    return -3 - id


class _NoCache(Cache):
    """A cache that returns the keys and values it is given: attention itself stores
    them.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states
