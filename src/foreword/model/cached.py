"""Drives a model through transformers' own cache: one sequence at a time, chains only, in forwards of fixed shapes.

A text is cut into blocks at fixed places, and every forward reads one block from the state before it, padded to its
end. The shapes of all tensors, and so the bits of a score, depend on the position in the text alone, not on how many
draft tokens are read with it. Padding and draft tokens leave nothing behind: the next forward begins at the block.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence as List
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from foreword.errors import ModelError
from foreword.model.driver import Mode
from foreword.model.listen import Overheard, listening
from foreword.model.plan import Read
from foreword.native.openmp import all_threads

BLOCK = 8
"""Rows of a forward after the prompt. More cost more a round; with fewer, draft tokens cross into a second one."""
PROMPT = 128
"""Rows of a forward over the prompt, at most; its end is read in halves of that, then in one block."""
BACK = 8
"""Tokens that can always be taken back without reading the text again; a draft model's own draft tokens are few."""


@dataclass(slots=True)
class _State:
    """The tokens that one sequence has read, and its cache after some of its blocks."""

    marks: list[tuple[int, DynamicCache | None]]
    """(tokens, cache after them), shortest first; a cache is copied before a forward goes on from it."""
    tokens: list[int] = field(default_factory=list)
    prompt: int | None = None
    """Tokens that had been read when logits were asked for first; None before."""


class CachedDriver(Overheard):
    """Mode CACHE reads blocks; mode PLAIN the whole prompt, then one token at a time, so it needs no padding."""

    copies = False

    def __init__(self, model: PreTrainedModel, mode: Mode, *, cache: bool = True) -> None:
        """Without a cache, in mode PLAIN alone, every forward reads the whole text."""
        self.mode = mode
        self._model, self._cache = model, cache
        self._device = next(model.parameters()).device
        names = inspect.signature(model.forward).parameters
        self._keyword = "cache_params" if "cache_params" in names else "past_key_values"  # as state space models say
        self._states: dict[int, _State] = {}

    def open(self, id: int, capacity: int) -> None:
        self._states[id] = _State([self._beginning()])

    def close(self, id: int) -> None:
        self._states.pop(id, None)

    def move(self, id: int, source: list[int], start: int) -> None:
        if source != list(range(start, start + len(source))):
            raise ModelError("this model scores chains only; its branches cannot be moved")

    @torch.inference_mode()
    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        return self._joined([self._read(read, ())[0] for read in reads])

    @torch.inference_mode()
    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        found = [self._read(read, layers) for read in reads]
        return self._joined([logits for logits, _ in found]), torch.cat(
            [heard for _, hidden in found for heard in hidden]
        )

    def _joined(self, found: List[list[Tensor]]) -> Float[Tensor, "kept vocab"]:
        rows = [piece for pieces in found for piece in pieces if len(piece)]
        vocab = self._model.config.get_text_config().vocab_size
        return torch.cat(rows) if rows else torch.empty(0, vocab, dtype=self._model.dtype, device=self._device)

    def _read(self, read: Read, layers: List[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits of the last `keep` tokens, and hidden states of all, block by block.

        A block that nobody asks for waits until it is full.
        """
        state = self._states[read.id]
        self._forget(state, read.past)
        state.tokens += read.tokens
        end = len(state.tokens)
        sure = end - max(read.keep - 1, 0)
        if read.keep and state.prompt is None:
            state.prompt = sure
        first, start = (read.past if layers else end - read.keep), state.marks[-1][0]
        logits: list[Tensor] = []
        hidden: list[Tensor] = []
        while start < end:
            size = self._size(state, start)
            if start + size > end and first >= end:
                break
            said, heard = self._forward(state, start, size, layers)
            logits.append(said[max(end - read.keep - start, 0) : end - start])
            hidden.append(heard[max(read.past - start, 0) : end - start])
            start += size
        self._trim(state, sure)
        return logits, hidden

    def _size(self, state: _State, start: int) -> int:
        """Tokens of the block that begins here: a function of the place and of the length of the prompt."""
        if self.mode is Mode.PLAIN:
            return (state.prompt or len(state.tokens) + 1) if start == 0 else 1
        size = PROMPT
        while state.prompt is not None and BLOCK < size > state.prompt - start:
            size //= 2
        return size

    def _forward(
        self, state: _State, start: int, size: int, layers: List[int]
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows features"]]:
        """Read one block. Its end is kept if the text fills it."""
        tokens, cache = state.tokens[start : start + size], state.marks[-1][1]
        full = len(tokens) == size
        tokens = tokens + tokens[-1:] * (size - len(tokens))
        given: dict[str, Any] = {"use_cache": False}
        if cache is None:
            tokens = state.tokens[:start] + tokens
        else:
            given = {"use_cache": True, self._keyword: _copied(cache)}
        ids = torch.tensor([tokens], device=self._device)
        silent = nullcontext(lambda: torch.empty(size, 0))
        with all_threads(), listening(self._model, layers) if layers else silent as heard:
            output = self._model(input_ids=ids, **given)
            states = heard()
        if full:
            state.marks.append((start + size, None if cache is None else output[self._keyword]))
        return output.logits[0, -size:], states[-size:]

    def _beginning(self) -> tuple[int, DynamicCache | None]:
        return 0, DynamicCache(config=self._model.config) if self._cache else None

    def _forget(self, state: _State, past: int) -> None:
        """Forget every token after `past`; what of the text before it is in no mark is read again."""
        if past == len(state.tokens):
            return
        del state.tokens[past:]
        if state.prompt is not None and past < state.prompt:
            state.prompt, state.marks = None, []
        state.marks = [mark for mark in state.marks if mark[0] <= past] or [self._beginning()]

    def _trim(self, state: _State, sure: int) -> None:
        """Drop marks that nothing will be read from again: those before the last that lies far enough back."""
        back = 0 if self.mode is Mode.PLAIN else BACK
        old = [place for place, (tokens, _) in enumerate(state.marks) if tokens <= sure - back]
        del state.marks[: max(old, default=0)]


def _copied(cache: DynamicCache) -> DynamicCache:
    """The cache as it is now. Ordinary layers make new tensors when they grow, so theirs are shared."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) if type(layer) is DynamicLayer else copy.deepcopy(layer) for layer in cache.layers]
    return twin
