"""The sources of encoder-decoders in forwards of the torch executor: decoders packed in
one forward, each with the keys of its own source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from foreword.model.encoder import EncoderMemory
from foreword.model.executors.torch.attention import NAME
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packing import Packing
from foreword.model.executors.torch.plan import Plan
from foreword.model.executors.torch.positions import Positions
from foreword.model.kv.pages import PageTable
from foreword.model.layers import cache_argument


class TorchSources(EncoderMemory, TorchMemory):
    """The sources of open sequences, and what every forward is given in their place."""

    def __init__(self, model: PreTrainedModel, own: str) -> None:
        """`own`: the model's own attention, under which the encoder runs."""
        super().__init__(model)
        self._own = own
        self._positions = Positions(model)
        self._cross: tuple[Tensor, ...] = ()
        """One key per layer, a placeholder for the keys of all sources."""
        self._options: dict[str, Any] = {}
        """An encoder's output, and a cache that stores nothing and holds `_cross`."""

    def empty(self) -> TorchSources:
        fresh = copy(self)
        fresh._rows = {}
        return fresh

    def _keys_and_values(self, states: Any) -> Sequence[Any]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # any token
        first = torch.zeros(1, 1, dtype=torch.long, device=self._model.device)
        self._model(
            encoder_outputs=states,
            decoder_input_ids=first,
            use_cache=True,
            **{cache_argument(self._model): cache},
        )
        made: list[Any] = list(cache.cross_attention_cache.layers)
        if not self._options:
            self._stand_in(states, made)
        return made

    def _write(
        self, executor: Packing, table: PageTable, length: int, layers: Sequence[Any]
    ) -> None:
        rows = torch.tensor(table.rows(0, length), device=self._model.device)
        for number, layer in enumerate(layers):
            executor.pool.write(
                number,
                layer.keys[0].transpose(0, 1),
                layer.values[0].transpose(0, 1),
                rows,
            )

    def _stand_in(self, states: Any, made: Sequence[Any]) -> None:
        """Keep what every forward is given in place of the encoder's output and of a
        cache.
        """
        cross = DynamicCache()
        pairs = [
            cross.update(one.keys[:, :, :1].clone(), one.values[:, :, :1].clone(), i)
            for i, one in enumerate(made)
        ]
        self._cross = tuple(key for key, _ in pairs)
        self._options = {
            "encoder_outputs": type(states)(
                **{**states, "last_hidden_state": states[0][:, :1].clone()}
            ),
            cache_argument(self._model): EncoderDecoderCache(_NoCache(), cross),
        }

    def run(
        self,
        model: PreTrainedModel,
        packed: Int[Tensor, "2 rows"],
        kept: list[int],
        plan: Plan,
    ) -> Float[Tensor, "kept vocab"]:
        plan = replace(plan, cross=self._cross)
        with self._positions.given(packed[1]) as options:
            # without it, Whisper drops the stand-in cache
            options |= self._options | {"use_cache": True}
            output = model(decoder_input_ids=packed[:1], plan=plan, **options)
        return output.logits[0, kept]

    @contextmanager
    def own_attention(self) -> Iterator[None]:
        """Give the model its own attention while inside."""
        self._model.set_attn_implementation(self._own)
        try:
            yield
        finally:
            self._model.set_attn_implementation(NAME)


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
