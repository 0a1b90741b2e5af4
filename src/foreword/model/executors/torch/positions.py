"""Provides the positions of packed rows to decoders whose model takes none: hooks on
their position embeddings.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

LENGTH = "past_key_values_length"
"""The parameter by which a position embedding is known: where the rows of a forward
begin in the text.
"""
POSITIONS = "position_ids"
MODEL_POSITIONS = "decoder_position_ids"


class Positions:
    """The parts of an encoder-decoder that need the positions of the decoder's rows,
    found by their parameters.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        modules: list[Any] = list(model.get_decoder().modules())
        signatures = [inspect.signature(module.forward) for module in modules]
        self._embeddings = [
            (module, signature)
            for module, signature in zip(modules, signatures, strict=True)
            if LENGTH in signature.parameters
        ]
        self._taken = MODEL_POSITIONS in inspect.signature(model.forward).parameters

    @contextmanager
    def given(self, positions: Int[Tensor, "rows"]) -> Iterator[dict[str, Any]]:
        """Give these positions to the embeddings while inside; yield the options of the
        model's forward that do.
        """
        with ExitStack() as hooks:
            for module, signature in self._embeddings:
                embedding = _Embedding(signature, positions)
                if POSITIONS in signature.parameters:
                    hook = module.register_forward_pre_hook(
                        embedding.replace, with_kwargs=True
                    )
                else:
                    hook = module.register_forward_hook(
                        embedding.look_up, with_kwargs=True
                    )
                hooks.callback(hook.remove)
            yield {MODEL_POSITIONS: positions[None]} if self._taken else {}


class _Embedding:
    """The hooks of one position embedding in one forward."""

    def __init__(
        self, signature: inspect.Signature, positions: Int[Tensor, "rows"]
    ) -> None:
        self._signature, self._positions = signature, positions

    def replace(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the positions that it is given, in their shape."""
        bound = self._signature.bind_partial(*args, **kwargs)
        theirs = bound.arguments.get(POSITIONS)
        bound.arguments[POSITIONS] = (
            self._positions if theirs is None else self._positions.view_as(theirs)
        )
        return bound.args, bound.kwargs

    def look_up(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Float[Tensor, "1 rows size"],
    ) -> Float[Tensor, "1 rows size"]:
        """Look up the positions in a table that is long enough for the text.

        Padding tokens have no position, and keep their row.
        """
        bound = self._signature.bind_partial(*args, **kwargs)
        tokens = bound.arguments["input_ids"]
        padding = getattr(module, "padding_idx", None)
        text = tokens.new_full((1, int(self._positions.max()) + 1), int(padding == 0))
        bound.arguments |= {"input_ids": text, LENGTH: 0}
        rows = module.forward(*bound.args, **bound.kwargs)[:, self._positions]
        return (
            rows
            if padding is None
            else torch.where((tokens == padding)[..., None], output, rows)
        )
