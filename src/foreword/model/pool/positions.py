"""Provides the positions of packed rows to decoders whose model takes none: hooks on their position embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

LENGTH = "past_key_values_length"
"""The parameter by which a position embedding is known: where the rows of a forward begin in the text."""
POSITIONS = "position_ids"


@contextmanager
def placing(model: PreTrainedModel, positions: Int[Tensor, "rows"]) -> Iterator[dict[str, Tensor]]:
    """Give these positions to the position embeddings of the decoder while inside.

    Yields the options of the model's forward that give them to a decoder that takes them.
    """
    name = f"decoder_{POSITIONS}"
    with ExitStack() as hooks:
        for module, parameters in _embeddings(model.get_decoder()):
            if POSITIONS in parameters:
                hook = module.register_forward_pre_hook(partial(_given, positions), with_kwargs=True)
            else:
                hook = module.register_forward_hook(partial(_looked_up, positions), with_kwargs=True)
            hooks.callback(hook.remove)
        yield {name: positions[None]} if name in inspect.signature(model.forward).parameters else {}


def _embeddings(decoder: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    for module in decoder.modules():
        parameters = inspect.signature(module.forward).parameters
        if LENGTH in parameters:
            yield module, parameters


def _given(
    positions: Int[Tensor, "rows"], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
    theirs = bound.arguments.get(POSITIONS)
    bound.arguments[POSITIONS] = positions if theirs is None else positions.view_as(theirs)
    return bound.args, bound.kwargs


def _looked_up(
    positions: Int[Tensor, "rows"],
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Float[Tensor, "1 rows size"],
) -> Float[Tensor, "1 rows size"]:
    """Take the embeddings from those of a text as long as needed. Padding tokens keep theirs: they have no position."""
    bound = inspect.signature(module.forward).bind_partial(*args, **kwargs)
    tokens = bound.arguments["input_ids"]
    padding = getattr(module, "padding_idx", None)
    other = 0 if padding != 0 else 1
    text = tokens.new_full((1, int(positions.max()) + 1), other)
    bound.arguments |= {"input_ids": text, LENGTH: 0}
    rows = module.forward(*bound.args, **bound.kwargs)[:, positions]
    return rows if padding is None else torch.where((tokens == padding)[..., None], output, rows)
