"""Baseline llama.cpp (llama-cpp-python): plain, with a draft model, prompt lookup."""

from collections.abc import Callable
from importlib import import_module
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from foreword.errors import ModelError
from foreword_lab.bench.peers.convert import FILE, FORMS, converted, note_vocabulary
from foreword_lab.bench.peers.engines import ASSISTED, LOOKUP
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.records import BenchRequest, Trial
from foreword_train.gguf import writer
from foreword_train.gguf.source import Source

SETTINGS: dict[str, dict[str, int]] = {
    ASSISTED: {"num_pred_tokens": 4},
    LOOKUP: {"num_pred_tokens": 10, "max_ngram_size": 2},
}
"""Draft tokens in a round; prompt lookup uses the binding's defaults."""
ROOM = 4096
"""Tokens of a prompt and its answer; when drafting, so many logits are kept."""


def greedy_draft(llama: Any) -> Callable[..., np.ndarray]:
    """Return a greedy draft model in the binding's interface, which verifies draft
    tokens but has no such model: the next ids (int32), where no prefix of the last call
    is read again.
    """
    most = SETTINGS[ASSISTED]["num_pred_tokens"]

    def draft(input_ids: np.ndarray, /, **_: Any) -> np.ndarray:
        tokens = llama.generate(input_ids.tolist(), temp=0.0)
        return np.array([*islice(tokens, most)], dtype=np.intc)

    return draft


class LlamaCpp:
    """The binding's own decoding loop, timed from token ids to token ids."""

    def __init__(self, name: str, llama: Any, eos: tuple[int, ...]) -> None:
        self.name = name
        self._llama, self._eos = llama, frozenset(eos)
        self._passes = 0
        read = llama.eval

        def counted(tokens: Any) -> None:
            self._passes += 1
            read(tokens)

        llama.eval = counted

    def run(self, request: BenchRequest) -> Trial:
        """Answer a request; above temperature 0 llama.cpp samples from the seed."""
        passes, first = self._passes, None
        written: list[int] = []
        started = perf_counter()
        # no prefix caching: every entry reads every prompt each time
        self._llama.reset()
        self._llama.set_seed(request.seed)
        tokens = self._llama.generate(
            list(request.prompt),
            temp=request.temperature,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repeat_penalty=1.0,
        )
        for token in tokens:
            written.append(token)
            first = first or perf_counter() - started
            if token in self._eos or len(written) == request.max_tokens:
                break
        seconds = perf_counter() - started
        return Trial(written, seconds, self._passes - passes, first=first)


def entry(name: str, mode: str, pair: Pair) -> LlamaCpp:
    """Return this mode's entry, loaded, or raise ModelError."""
    target = pair.target()
    draft: Any = None
    if mode == ASSISTED:
        draft = greedy_draft(_load(pair.draft(), pair.note))
    if mode == LOOKUP:
        speculative: Any = import_module("llama_cpp.llama_speculative")
        draft = speculative.LlamaPromptLookupDecoding(**SETTINGS[LOOKUP])
    llama = _load(target, pair.note, draft)

    def tokenize(text: str) -> list[int]:
        return llama.tokenize(text.encode(), add_bos=False)

    note_vocabulary("llama.cpp", target, llama.n_vocab(), tokenize, pair.note)
    return LlamaCpp(name, llama, target.eos)


def file(source: Source, note: Callable[[str], None]) -> Path:
    """Return the path of the model as a GGUF file, converted if it has none."""
    if source.file is not None:
        return source.file
    kind = None if source.form is None else FORMS[source.form]

    def write(out: Path) -> None:
        writer.write(source, out / FILE, kind)

    return converted(f"gguf-{kind}" if kind else "gguf", source, write, note) / FILE


def _load(source: Source, note: Callable[[str], None], draft: Any = None) -> Any:
    """Load a model into llama.cpp, with as many threads as torch has."""
    context = min(source.context, ROOM)
    threads = torch.get_num_threads()
    path = file(source, note)
    try:
        return import_module("llama_cpp").Llama(
            str(path),
            n_ctx=context,
            n_batch=context,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            verbose=False,
        )
    except ValueError as error:
        raise ModelError(
            f"cannot load {path} into llama.cpp: {error}. Install a newer "
            "llama-cpp-python, or name other engines"
        ) from error
