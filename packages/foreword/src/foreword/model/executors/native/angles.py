"""Tables of the C forward by position: rotary angles, query factors, biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from foreword.model.executors.native.layout import LANES
from foreword.native import forward

Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(a tensor of the output dtype, positions [1, position]) -> cos and sin of their
angles [1, position, dim].
"""
FIRST = 1024
"""Positions of the first tables; longer ones follow by doubling."""


class OwnTurns(TorchFunctionMode):
    """Cosines and sines by csrc/exact.h, in the code of the model that asks torch for
    them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in (Tensor.cos, Tensor.sin, torch.cos, torch.sin):
            return func(*args, **(kwargs or {}))
        cos, sin = turns(args[0])
        return cos if func in (Tensor.cos, torch.cos) else sin


def turns(
    angles: Float[Tensor, "*size"],
) -> tuple[Float[Tensor, "*size"], Float[Tensor, "*size"]]:
    """Return cosines and sines of angles, the same bits on every processor."""
    values = angles.float().contiguous()
    cos, sin = torch.empty_like(values), torch.empty_like(values)
    places = values.data_ptr(), cos.data_ptr(), sin.data_ptr()
    forward.needed().foreword_turns(*places, values.numel())
    return cos.to(angles.dtype), sin.to(angles.dtype)


class Angles:
    """Tables of one C model for every position up to the longest that was read."""

    def __init__(
        self,
        rotaries: Sequence[Rotary | None],
        query_scale: Callable[[Tensor], Tensor] | None = None,
        biases: Sequence[Callable[..., Any] | None] = (),
        *,
        portable: bool = False,
    ) -> None:
        """`rotaries`: the rotary embedding of each layer; None = it has none.

        `query_scale`: positions -> factors of the queries there. `biases`: what
        computes the position biases of each layer; None = as in the layer before.
        """
        self.rotaries = rotaries
        self.reached = 0
        """Positions in the tables."""
        self.tables: dict[Rotary, tuple[Tensor, ...]] = {}
        """By rotary embedding, cos and sin [position, dim], float32."""
        self._spare = 0
        self._portable = portable
        self._query_scale = query_scale
        self._biases = biases
        self._factors = torch.empty(0, dtype=torch.float32)
        self._bias_tables: list[Tensor] = []

    def again(self) -> Angles:
        """Return the same tables for another C model, still empty."""
        return Angles(
            self.rotaries, self._query_scale, self._biases, portable=self._portable
        )

    def make_portable(self) -> None:
        """Compute cosines and sines without torch from now on, the same bits on every
        processor.
        """
        self._portable = True
        self.reached = self._spare = 0

    def reach(self, model: forward.Model, length: int, spare: int = 0) -> None:
        """Compute the tables of every position up to `length`, if not done yet; have as
        many as `spare` rows after them. Point the model to them.
        """
        longer = length > self.reached
        if longer:
            self.reached = max(FIRST, 2 * length)
        elif spare <= self._spare:
            return
        self._spare = max(spare, self._spare)
        with torch.inference_mode():
            self._turn(model)
        if longer and any(self._biases):
            self._bias_tables = self._biased(model)

    def _turn(self, model: forward.Model) -> None:
        like = torch.zeros(1, dtype=torch.float32)
        positions = torch.arange(self.reached + self._spare)[None]
        self.tables = {}
        context = OwnTurns() if self._portable else nullcontext()
        for rotary in filter(None, dict.fromkeys(self.rotaries)):
            with context:
                turned = rotary(like, positions)
            tables = [table.float().flatten(0, -2) for table in turned]
            self.tables[rotary] = tuple(table.contiguous() for table in tables)
        if self._query_scale is not None:
            self._factors = self._query_scale(positions[0]).float().contiguous()
            model.query_scale = self._factors.data_ptr()
        for layer, rotary in zip(
            model.layer[: model.layers], self.rotaries, strict=True
        ):
            if rotary is not None:
                layer.cos, layer.sin = (
                    table.data_ptr() for table in self.tables[rotary]
                )
                model.rotary_dim = self.tables[rotary][0].shape[1]

    @torch.inference_mode()
    def _biased(self, model: forward.Model) -> list[Tensor]:
        """Compute the position biases of every distance, by the model's own code, and
        point each layer to its table.
        """
        most = self.reached
        tables: list[Tensor] = []
        for described, biases in zip(
            model.layer[: model.layers], self._biases, strict=True
        ):
            if biases is not None:
                computed: Any = biases(1, most, past_seen_tokens=most - 1)
                # C reads whole vectors
                tables.append(F.pad(computed[0, :, 0].float().flatten(), (0, LANES)))
            described.bias = tables[-1].data_ptr()
        model.distances = most
        return tables
