"""Drives a model that cannot take our attention through transformers' own cache: one sequence at a time, chains only.

A rejected guess is undone by cropping where every layer allows it. Where not, a copy of the state from before a forward
is kept, and the next forward begins with what stayed of that one: a few rows more in place of one more forward.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from foreword.errors import ModelError
from foreword.model.driver import Mode
from foreword.model.listen import Overheard
from foreword.model.plan import Read
from foreword.native.openmp import all_threads

MOST_AGAIN = 16
"""Tokens of the text that are read with guesses, and again where one is rejected; more have a forward of their own."""


@dataclass(slots=True)
class _State:
    """The cache of one sequence, the tokens it has read, and a copy of both from before the last read with guesses."""

    cache: DynamicCache
    tokens: list[int] = field(default_factory=list)
    saved: tuple[DynamicCache, int] | None = None


class CachedDriver(Overheard):
    """Mode CACHE reads a chain of guesses in one forward; mode PLAIN one token at a time, after the prompt."""

    copies = False

    def __init__(self, model: PreTrainedModel, mode: Mode) -> None:
        self.mode = mode
        self._model = model
        self._device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        self._keyword = "cache_params" if "cache_params" in names else "past_key_values"  # as state space models say
        self._states: dict[int, _State] = {}

    def open(self, id: int, capacity: int) -> None:
        self._states[id] = _State(DynamicCache(config=self._model.config))

    def close(self, id: int) -> None:
        self._states.pop(id, None)

    def move(self, id: int, source: list[int], start: int) -> None:
        if source != list(range(start, start + len(source))):
            raise ModelError("this model scores chains only; its branches cannot be moved")

    @torch.inference_mode()
    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with all_threads():
            return torch.cat([self._read(self._states[read.id], read) for read in reads])

    def _read(self, state: _State, read: Read) -> Float[Tensor, "kept vocab"]:
        tokens = self._rewind(state, read.past) + read.tokens
        guesses = max(read.keep - 1, 0)
        if guesses and not _croppable(state.cache):
            if len(tokens) - guesses > MOST_AGAIN:
                self._forward(state, tokens[: -guesses - 1])
                tokens = tokens[-guesses - 1 :]
            state.saved = (_copied(state.cache), len(state.tokens))
        logits = self._forward(state, tokens)
        return logits[logits.shape[0] - read.keep :]

    def _forward(self, state: _State, tokens: list[int]) -> Float[Tensor, "tokens vocab"]:
        if self.mode is Mode.PLAIN and state.tokens and len(tokens) > 1:
            return torch.cat([self._forward(state, [token]) for token in tokens])
        ids = torch.tensor([tokens], device=self._device)
        output = self._model(input_ids=ids, use_cache=True, **{self._keyword: state.cache})
        state.cache = output[self._keyword]
        state.tokens += tokens
        return output.logits[0]

    def _rewind(self, state: _State, past: int) -> list[int]:
        """Forget everything after `past`; returns the tokens that must be read again to be there."""
        surplus = len(state.tokens) - past
        if surplus <= 0:
            return []
        if _croppable(state.cache):
            state.cache.crop(-surplus)
            state.tokens = state.tokens[:past]
            return []
        if state.saved is None or state.saved[1] > past:
            raise ModelError("this model's state cannot be rolled back so far")
        (state.cache, length), state.saved = state.saved, None
        again, state.tokens = state.tokens[length:past], state.tokens[:length]
        return again


def _copied(cache: DynamicCache) -> DynamicCache:
    """The cache as it is now. Ordinary layers make new tensors when they grow, so theirs are shared."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) if type(layer) is DynamicLayer else copy.deepcopy(layer) for layer in cache.layers]
    return twin


def _croppable(cache: DynamicCache) -> bool:
    """Every layer is an ordinary growing one, whose end can be cut off (sliding and recurrent ones cannot)."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)
