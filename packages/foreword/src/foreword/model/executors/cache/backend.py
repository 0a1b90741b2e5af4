"""Backend over transformers' own cache: one sequence at a time, chains only, forwards
of fixed shapes.

A sequence is cut into blocks at fixed positions. Every forward reads one block from the
cache before it, padded to its end. So tensor shapes, and the bits of a score, depend on
the position alone, not on the number of draft tokens. The next forward starts from the
same cache again, without padding and draft tokens.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from foreword.errors import ModelError
from foreword.model.backend import Mode
from foreword.model.executors.cache.memories import CacheMemory
from foreword.model.executors.torch.hooks import CapturesHiddenStates, listening
from foreword.model.kv.memories import Remembers
from foreword.model.kv.reads import PromptEnd, Read
from foreword.model.layers import cache_argument
from foreword.native.openmp import all_threads

BLOCK = 8
"""Rows of a forward after the prompt: a compromise between cost and forwards."""
PROMPT = 128
"""Rows. Largest forward over the prompt; its end is halved down to BLOCK."""
BACK = 8
"""Tokens that can always be rolled back without reading the sequence again."""


Mark = tuple[int, Cache | None]
"""(number of tokens, cache after them)."""


@dataclass(slots=True)
class _State:
    """The tokens read of one sequence, and its cache after some of its blocks."""

    beginning: Mark
    """The mark before its first token."""
    marks: list[Mark]
    """Shortest first; a forward continues from a copy of the cache."""
    tokens: list[int] = field(default_factory=list)
    prompt: int | None = None
    """Prompt tokens: as given, or those read before the first logits; None before."""


class CacheBackend(CapturesHiddenStates, Remembers):
    """A backend that reads blocks (CACHE), or a prompt and single tokens (PLAIN)."""

    probed = True

    copies = False
    pool = None

    def __init__(
        self,
        model: PreTrainedModel,
        mode: Mode,
        memories: Sequence[CacheMemory] = (),
        *,
        cache: bool = True,
    ) -> None:
        """Without a cache, in mode PLAIN, every forward reads the whole sequence."""
        self.mode = mode
        self.model = model
        self.memories = memories
        self._cache = cache
        self._device = next(model.parameters()).device
        self._keyword = cache_argument(model)
        self._states: dict[int, _State] = {}

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence without earlier caches: its blocks depend on its prompt."""
        beginning: Mark = (0, self._empty_cache() if self._cache else None)
        self._states[id] = _State(beginning, [beginning])
        return 0

    def give(self, id: int, material: object) -> None:
        """Set what an open sequence reads beside its text, or where its prompt ends, so
        that its answer so far is read as it was written.
        """
        if isinstance(material, PromptEnd):
            self._states[id].prompt = material.tokens
        else:
            super().give(id, material)

    def _empty_cache(self) -> Cache:
        for memory in self.memories:
            cache = memory.cache()
            if cache is not None:  # an empty cache is false
                return cache
        return DynamicCache(config=self.model.config)

    def close(self, id: int) -> None:
        self._states.pop(id, None)
        for memory in self.memories:
            memory.close(None, id)

    def move(self, id: int, source: list[int], start: int) -> None:
        if source != list(range(start, start + len(source))):
            raise ModelError(
                "cannot move the keys of a branch: this model scores chains only"
            )

    @torch.inference_mode()
    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        return self._joined([self._read(read, ())[0] for read in reads])

    @torch.inference_mode()
    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        results = [self._read(read, layers) for read in reads]
        return self._joined([logits for logits, _ in results]), torch.cat(
            [states for _, hidden in results for states in hidden]
        )

    def _joined(self, logits: Sequence[list[Tensor]]) -> Float[Tensor, "kept vocab"]:
        rows = [block for block in chain.from_iterable(logits) if len(block)]
        vocab = self.model.config.get_text_config().vocab_size
        return (
            torch.cat(rows)
            if rows
            else torch.empty(0, vocab, dtype=self.model.dtype, device=self._device)
        )

    def _read(
        self, read: Read, layers: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits of the last `keep` tokens and hidden states of all tokens, by
        block.

        A partial block whose results are not requested is read once it is full.
        """
        state = self._states[read.id]
        self._rollback(state, read.past)
        state.tokens += read.tokens
        end = len(state.tokens)
        committed = end - max(read.keep - 1, 0)
        if read.keep and state.prompt is None:
            state.prompt = committed
        first, start = (read.past if layers else end - read.keep), state.marks[-1][0]
        logits: list[Tensor] = []
        hidden: list[Tensor] = []
        while start < end:
            size = self._size(state, start)
            if start + size > end and first >= end:
                break
            if not self._cache and start + size <= first:
                state.marks.append((start + size, None))
            else:
                scores, states = self._forward(read.id, start, size, layers)
                logits.append(scores[max(end - read.keep - start, 0) : end - start])
                hidden.append(states[max(read.past - start, 0) : end - start])
            start += size
        self._trim(state, committed)
        return logits, hidden

    def _size(self, state: _State, start: int) -> int:
        """Return the size of the block at `start`, by the prompt's length only."""
        if self.mode is Mode.PLAIN:
            return (state.prompt or len(state.tokens) + 1) if start == 0 else 1
        size = PROMPT
        while state.prompt is not None and BLOCK < size > state.prompt - start:
            size //= 2
        return size

    def _forward(
        self, id: int, start: int, size: int, layers: Sequence[int]
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows features"]]:
        """Run one block. Keep the cache after it if its tokens fill it."""
        state = self._states[id]
        tokens, cache = state.tokens[start : start + size], state.marks[-1][1]
        full = len(tokens) == size
        tokens = tokens + tokens[-1:] * (size - len(tokens))
        options: dict[str, Any] = {"use_cache": False}
        if cache is None:
            tokens = state.tokens[:start] + tokens
        else:
            options = {"use_cache": True, self._keyword: _copied(cache)}
        ids = torch.tensor([tokens], device=self._device)
        inputs: dict[str, Any] = {"input_ids": ids}
        no_states = nullcontext(lambda: torch.empty(size, 0, dtype=torch.float32))
        first, stop = start + size - len(tokens), start + size
        with ExitStack() as during:
            during.enter_context(all_threads())
            for memory in self.memories:
                inputs = memory.inputs(id, inputs)
                during.enter_context(memory.during(self.model, id, first, stop))
            captured = during.enter_context(
                listening(self.model, layers) if layers else no_states
            )
            output = self.model(**inputs, **options)
            states = captured()
        if full:
            state.marks.append(
                (start + size, None if cache is None else output[self._keyword])
            )
        return output.logits[0, -size:], states[-size:]

    def _rollback(self, state: _State, past: int) -> None:
        """Drop tokens after `past`; those after the last mark left are read again."""
        if past == len(state.tokens):
            return
        del state.tokens[past:]
        if state.prompt is not None and past < state.prompt:
            state.prompt, state.marks = None, []
        marks = [mark for mark in state.marks if mark[0] <= past]
        state.marks = marks or [state.beginning]

    def _trim(self, state: _State, committed: int) -> None:
        """Drop marks before the last one that is at least BACK tokens back."""
        back = 0 if self.mode is Mode.PLAIN else BACK
        lengths = [tokens for tokens, _ in state.marks]
        old = [i for i, length in enumerate(lengths) if length <= committed - back]
        del state.marks[: max(old, default=0)]


def _copied(cache: Cache) -> Cache:
    """Return a copy of the cache. A DynamicLayer makes new tensors when it grows, so
    its tensors are shared.

    Keys and values of an encoder's states never grow, so the copy shares them, even if
    they are not computed yet.
    """
    twin = copy.copy(cache)
    if isinstance(twin, EncoderDecoderCache):
        twin.self_attention_cache = _copied(twin.self_attention_cache)
        return twin
    twin.layers = [
        copy.copy(layer) if type(layer) is DynamicLayer else copy.deepcopy(layer)
        for layer in cache.layers
    ]
    return twin
