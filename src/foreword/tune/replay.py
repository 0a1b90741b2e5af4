"""Value of a mask: how far its drafts are accepted in replayed answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from foreword.draft.self_speculative import layers
from foreword.draft.self_speculative.layers import DEEPEST, Mask
from foreword.model import Model, Read
from foreword.model.view import Skipping, view
from foreword.sampling.draw import choose
from foreword.sampling.noise import gumbel
from foreword.types.params import SamplingParams

FIRST = -2
"""Id of the first text. Others count down, since requests count up from 1."""
Chain = tuple[int, int]
"""Draft tokens that were accepted, and all."""


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a prompt and of the target's answer, with its parameters."""

    prompt: int
    """Number of tokens before the answer."""
    tokens: list[int]
    params: SamplingParams


class MaskReplay:
    """Replay of the target's answers with a mask, whose drafts are compared.

    A chain starts after every `DEEPEST` tokens and reads the target's keys and values.
    The last chain is read first, since it overwrites them from its position on.
    """

    def __init__(self, target: Model) -> None:
        """Raises InvalidRequest if no halves of the target's layers can be left out."""
        self.target = target
        self._twin = view(target, spare=DEEPEST)
        self.halves = layers.costs(target)

    @contextmanager
    def open(self, texts: Sequence[Text]) -> Iterator[None]:
        """Keep texts open in the target while inside."""
        try:
            for place, text in enumerate(texts):
                self.target.open(FIRST - place, len(text.tokens) + DEEPEST)
                prompt = text.tokens[: text.prompt]
                self.target.read([Read(FIRST - place, 0, prompt, keep=0)])
            yield
        finally:
            for place in range(len(texts)):
                self.target.close(FIRST - place)

    def value(self, texts: Sequence[Text], mask: Mask) -> float:
        """Return the expected speed over plain decoding of a mask, from open texts."""
        chains: list[Chain] = []
        with self.target.single_torch_thread():
            for place, text in enumerate(texts):
                chains += self.chains(FIRST - place, text, mask)
        verified = sum(min(accepted + 1, most) for accepted, most in chains)
        agreement = sum(accepted for accepted, _ in chains) / verified
        return layers.gain(agreement, layers.cost_without(mask, self.halves))

    def chains(self, id: int, text: Text, mask: Mask) -> list[Chain]:
        """Return the chains that a mask drafts in an open text, last one first."""
        start = text.prompt
        self.target.read([Read(id, start, text.tokens[start:], keep=0)])
        cast("Skipping", self._twin.backend).skip(layers.skipped(mask))
        found: list[Chain] = []
        for begin in reversed(range(start, len(text.tokens) - 1, DEEPEST)):
            answer = text.tokens[begin + 1 : begin + 1 + DEEPEST]
            rows = len(answer)
            read = Read(id, begin, text.tokens[begin : begin + rows], keep=rows)
            logits = self._twin.read([read])
            noise = None
            if not text.params.greedy:
                seeds = [text.params.seed or 0] * rows
                at = range(begin + 1, begin + 1 + rows)
                noise = gumbel(seeds, at, logits.shape[-1], device=logits.device)
            drafts = choose(logits, text.params, noise, list(range(rows)))
            wrong = (k for k, token in enumerate(answer) if drafts[k] != token)
            found.append((next(wrong, rows), rows))
        return found
