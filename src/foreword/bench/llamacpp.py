"""llama.cpp as a contender, through llama-cpp-python: plain, with a draft model, with prompt lookup.

Knows that binding and its settings; knows nothing of our engine.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from foreword.bench import gguf
from foreword.bench.converted import Source, converted
from foreword.bench.engines import ASSISTED, LOOKUP, Pair
from foreword.bench.trial import Request, Trial

SETTINGS: dict[str, dict[str, int]] = {
    ASSISTED: {"num_pred_tokens": 4},
    LOOKUP: {"num_pred_tokens": 10, "max_ngram_size": 2},
}
"""Tokens that a draft model guesses in a round; those of prompt lookup are the binding's defaults."""
ROOM = 4096
"""Tokens of a prompt and its answer, at most; with guesses the binding keeps logits for so many."""
FILE = "model.gguf"


class Guesses:
    """A draft model for the binding, which checks guesses but makes none: it says the likeliest tokens."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def __call__(self, input_ids: np.ndarray, /, **_: Any) -> np.ndarray:
        """Ids (int32) to follow these. What was read for the call before is not read again."""
        spoken = self._llama.generate(input_ids.tolist(), temp=0.0)
        return np.array(list(islice(spoken, SETTINGS[ASSISTED]["num_pred_tokens"])), dtype=np.intc)


class LlamaCpp:
    """The binding's own loop, timed from token ids to token ids."""

    def __init__(self, name: str, llama: Any, eos: tuple[int, ...]) -> None:
        self.name = name
        self._llama, self._eos = llama, frozenset(eos)
        self._passes = 0
        read = llama.eval

        def counted(tokens: Any) -> None:
            self._passes += 1
            read(tokens)

        llama.eval = counted

    def run(self, request: Request) -> Trial:
        """Answer one request. At a temperature above 0 the draw is llama.cpp's own, seeded with the same number."""
        passes = self._passes
        written: list[int] = []
        started = perf_counter()
        self._llama.reset()  # every contender shall read every prompt, however often it comes
        self._llama.set_seed(request.seed)
        spoken = self._llama.generate(
            list(request.prompt), temp=request.temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
        )
        for token in spoken:
            written.append(token)
            if token in self._eos or len(written) == request.max_tokens:
                break
        seconds = perf_counter() - started
        return Trial(written, seconds, self._passes - passes)


def contender(name: str, way: str, pair: Pair) -> LlamaCpp:
    """Load what this way needs. Raises ModelError where the models cannot be converted."""
    target = pair.target()
    guesses: Any = None
    if way == ASSISTED:
        guesses = Guesses(_load(pair.draft(), pair.note))
    if way == LOOKUP:
        speculative: Any = import_module("llama_cpp.llama_speculative")
        guesses = speculative.LlamaPromptLookupDecoding(**SETTINGS[LOOKUP])
    return LlamaCpp(name, _load(target, pair.note, guesses), target.eos)


def file(source: Source, note: Callable[[str], None]) -> Path:
    """Where this model lies as a GGUF file; converted unless it was before."""

    def write(out: Path) -> None:
        gguf.write(source, out / FILE)

    return converted("gguf", source, write, note) / FILE


def _load(source: Source, note: Callable[[str], None], guesses: Any = None) -> Any:
    """With as many threads as torch has."""
    context, threads = min(source.model.config.max_position_embeddings, ROOM), torch.get_num_threads()
    return import_module("llama_cpp").Llama(
        str(file(source, note)),
        n_ctx=context,
        n_batch=context,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=guesses,
        verbose=False,
    )
