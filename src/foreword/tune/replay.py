"""Value of a mask: how far its drafts are accepted in replayed answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import cast

from torch import Tensor

from foreword.draft.self_speculative import layers
from foreword.draft.self_speculative.layers import DEEPEST, Mask
from foreword.model import Model, Read
from foreword.model.view import Skipping, view
from foreword.sampling.draw import choose
from foreword.sampling.noise import gumbel
from foreword.types import Request

FIRST = -2
"""Id of the first text. Others count down, since requests count up from 1."""


class MaskReplay:
    """Replay of the target's answers with a mask, whose drafts are compared.

    A chain of `DEEPEST` tokens reads the target's keys and values. The last one is read
    first, since it overwrites them from its position on.
    """

    def __init__(self, target: Model) -> None:
        """Raises InvalidRequest if no halves of the target's layers can be left out."""
        self.target = target
        self._twin = view(target, spare=DEEPEST)
        self.halves = layers.costs(target)

    @contextmanager
    def open(self, texts: Sequence[Request]) -> Iterator[None]:
        """Keep texts open in the target while inside."""
        try:
            for place, text in enumerate(texts):
                number = FIRST - place
                room = len(text.tokens) + DEEPEST
                self.target.open(number, room)
                prompt = text.tokens[: text.prompt]
                self.target.read([Read(number, 0, prompt, keep=0)])
            yield
        finally:
            for place in range(len(texts)):
                self.target.close(FIRST - place)

    def value(self, texts: Sequence[Request], mask: Mask) -> float:
        """Return the expected speed over plain decoding of a mask, from open texts."""
        chains: list[tuple[int, int]] = []
        with self.target.single_torch_thread():
            for place, text in enumerate(texts):
                chains += self.chains(FIRST - place, text, mask)
        accepted = verified = 0
        for right, most in chains:
            accepted += right
            verified += min(right + 1, most)
        cost = layers.cost_without(mask, self.halves)
        return layers.gain(accepted / verified, cost)

    def chains(self, id: int, text: Request, mask: Mask) -> list[tuple[int, int]]:
        """Return (accepted, all) draft tokens of each chain, last one first."""
        start = text.prompt
        tokens = text.tokens
        self.target.read([Read(id, start, tokens[start:], keep=0)])
        backend = cast("Skipping", self._twin.backend)
        backend.skip(layers.skipped(mask))
        found = []
        begins = range(start, len(tokens) - 1, DEEPEST)
        for begin in reversed(begins):
            answer = tokens[begin + 1 :][:DEEPEST]
            rows = len(answer)
            asked = tokens[begin : begin + rows]
            read = Read(id, begin, asked, keep=rows)
            logits = self._twin.read([read])
            drafts = _chosen(text, begin, logits)
            right = map(int.__eq__, drafts, answer)
            accepted = sum(takewhile(bool, right))
            found.append((accepted, rows))
        return found


def _chosen(text: Request, begin: int, logits: Tensor) -> list[int]:
    """Return the tokens that a request writes by these logits, after `begin`."""
    rows, vocab = logits.shape
    noise = None
    if not text.params.greedy:
        seeds = [text.seed] * rows
        places = range(begin + 1, begin + 1 + rows)
        noise = gumbel(seeds, places, vocab, device=logits.device)
    return choose(logits, text.params, noise, list(range(rows)))
