"""Overhears the hidden states of a Hugging Face model while it reads, through hooks: its code is not touched.

Knows how such models are built; knows nothing about who listens, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.plan import Read
from foreword.native.openmp import all_threads


def layers_of(model: PreTrainedModel) -> List[nn.Module]:
    """The decoder layers, first to last, none of what sees. Raises ModelError where they cannot be found."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.get_decoder().modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not lists:
        raise ModelError(f"{type(model).__name__} has no list of its {count} layers, so nobody can listen to them")
    return list(lists[0])


@contextmanager
def listening(model: PreTrainedModel, layers: List[int]) -> Iterator[Callable[[], Float[Tensor, "rows features"]]]:
    """While inside, the model's forwards are overheard; the callable gives what was heard, oldest row first.

    Layers are numbered as transformers numbers hidden states: 0 = the embeddings, i = what layer i reads, the number
    of layers = what the head reads, after the last norm. Rows of a batch come one text after the other.
    """
    heard: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    modules = layers_of(model)
    with ExitStack() as hooks:
        for layer in heard:
            if layer < len(modules):
                keep = partial(_before, heard[layer])
                hook = modules[layer].register_forward_pre_hook(keep, with_kwargs=True)
            else:
                hook = model.get_decoder().register_forward_hook(partial(_after, heard[layer]))
            hooks.callback(hook.remove)
        yield lambda: torch.cat([torch.cat(heard[layer]) for layer in layers], -1)


def spoken(model: PreTrainedModel, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
    """What the model's head says of hidden states. Raises ModelError where it has none."""
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no head of its own, so nobody can speak through it")
    return head(hidden.to(model.dtype))


class Overheard:
    """What makes a driver of a Hugging Face model one that can be listened to; it brings `_model` and `read`."""

    _model: PreTrainedModel

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        raise NotImplementedError

    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """`read`, and the hidden states of every token read, those of all `layers` side by side."""
        logits, heard = zip(*[self._heard(part, layers) for part in self._forwards(reads)], strict=True)
        return torch.cat(logits), torch.cat(heard)

    @torch.inference_mode()
    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """What the model's own head says of hidden states that are normed already."""
        with all_threads():
            return spoken(self._model, hidden)

    def _forwards(self, reads: List[Read]) -> List[List[Read]]:
        """Which reads share a forward."""
        return [[read] for read in reads]

    def _own(self, rows: Float[Tensor, "heard features"], count: int) -> Float[Tensor, "rows features"]:
        """Of all rows of a forward those of the tokens that were to be read: the last, for some are read again."""
        return rows[-count:]

    def _heard(self, reads: List[Read], layers: List[int]) -> tuple[Tensor, Tensor]:
        with listening(self._model, layers) as heard:
            logits = self.read(reads)
        return logits, self._own(heard(), sum(len(read.tokens) for read in reads))


def _before(kept: list[Tensor], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kept.append((args[0] if args else kwargs["hidden_states"]).flatten(0, 1))


def _after(kept: list[Tensor], _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    kept.append(output[0].flatten(0, 1))
