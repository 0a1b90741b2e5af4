"""What the target said lately and how likely it found it, in bounded memory: what a draft model can learn from.

Knows texts and laws; knows nothing about who learns, or when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.evidence import finite
from foreword.types import Sequence

KEPT = 32
"""Outcomes of a law that are kept apart; all others are one."""
WINDOW = 256
"""Tokens of a lesson at most, those learnt and those before them."""
LEARNT = 128
"""Laws of a lesson at most."""
ROWS = 32
"""Laws that are made at a time; until then raw logits are held."""
LEAST = 1e-6
"""No chance is taken for smaller than this, so that every logarithm is finite."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """The end of a text, and the target's law of what follows each of its last tokens."""

    tokens: Int[Tensor, "length"]
    likeliest: Int[Tensor, "learnt kept"]
    logs: Float[Tensor, "learnt outcomes"]
    """Log-probabilities at temperature 1, of the likeliest tokens and, last, of all others together."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, most: int) -> Lesson:
        """Its last `most` tokens; of their laws, where the text is longer, those with at least half of them before."""
        if len(self) <= most:
            return self
        laws = min(len(self.logs), max(1, most // 2))
        return Lesson(self.tokens[-most:], self.likeliest[-laws:], self.logs[-laws:])


def laws(
    logits: Float[Tensor, "rows vocab"], vocab: int
) -> tuple[Int[Tensor, "rows kept"], Float[Tensor, "rows outcomes"]]:
    """Of raw logits, the likeliest of the first `vocab` tokens and their log-probabilities; last, what is left."""
    best = logits[:, :vocab].float().topk(min(KEPT, vocab - 1))
    logs = best.values - logits.float().logsumexp(-1, keepdim=True)
    rest = (1 - logs.exp().sum(-1, keepdim=True)).clamp_min(LEAST).log()
    return best.indices.int().cpu(), torch.cat([logs, rest], -1).cpu()


def foreseen(
    logits: Float[Tensor, "rows vocab"], likeliest: Int[Tensor, "rows kept"]
) -> Float[Tensor, "rows outcomes"]:
    """A draft's log-probabilities of the same outcomes, from its raw logits; differentiable."""
    named = likeliest.long()
    others = logits.scatter(-1, named, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, named), others], -1) - logits.logsumexp(-1, keepdim=True)


@dataclass(slots=True)
class _Text:
    """A text that is being written, and the laws of its tokens from `start` on."""

    sequence: Sequence
    start: int
    likeliest: list[Tensor] = field(default_factory=list)
    logs: list[Tensor] = field(default_factory=list)
    count: int = 0


class Lessons:
    """Listens to running texts, and keeps at most `most` tokens of lessons, the newest ones."""

    def __init__(self, vocab: int, most: int) -> None:
        """`vocab` is that of the one who learns; of the target's tokens only those are told apart."""
        self._vocab, self._most = vocab, most
        self._heard: list[tuple[Sequence, int, Tensor]] = []
        self._texts: dict[int, _Text] = {}
        self._new: deque[Lesson] = deque()
        self.known: deque[Lesson] = deque()
        """Those that were handed out before, oldest first."""
        self.held = 0
        """Tokens of all lessons."""

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._texts or any(one.id == sequence.id for one, _, _ in self._heard)

    def hear(self, sequence: Sequence, logits: Float[Tensor, "rows vocab"]) -> None:
        """The target's raw logits of the tokens that are about to be added to this sequence."""
        self._heard.append((sequence, len(sequence.tokens), logits))

    def settle(self, *, least: int = ROWS) -> None:
        """Between rounds: make laws of what was heard, if that is at least so many rows."""
        if sum(len(logits) for _, _, logits in self._heard) < least:
            return
        heard, self._heard = self._heard, []
        sizes = [len(logits) for _, _, logits in heard]
        likeliest, logs = laws(torch.cat([logits for _, _, logits in heard]), self._vocab)
        parts = zip(heard, likeliest.split(sizes), logs.split(sizes), strict=True)
        for (sequence, start, _), names, values in parts:
            text = self._texts.setdefault(sequence.id, _Text(sequence, start))
            if text.start + text.count != start:  # a round came to nothing, or was not heard
                self._cut(text)
                text.start = start
            said = min(len(names), len(sequence.tokens) - start)  # a text may end within what was decided
            if not finite(float(values.sum())):  # nothing can be learnt from such a law, and all weights would be lost
                said = 0
            text.likeliest.append(names[:said])
            text.logs.append(values[:said])
            text.count += said
            if text.count >= LEARNT:
                self._cut(text)

    def end(self, sequence: Sequence) -> None:
        """The text is whole."""
        self.settle(least=1)
        text = self._texts.pop(sequence.id, None)
        if text is not None:
            self._cut(text)

    def new(self, size: Callable[[Lesson], int], least: int) -> List[Lesson]:
        """The lessons that were not handed out yet; none where their sizes add up to less than `least`."""
        if sum(map(size, self._new)) < least:
            return []
        found = list(self._new)
        self.known += found
        self._new.clear()
        return found

    def _cut(self, text: _Text) -> None:
        """Make lessons of the laws so far, and go on after them."""
        if not text.count:
            return
        likeliest, logs = torch.cat(text.likeliest), torch.cat(text.logs)
        for at in range(0, text.count, LEARNT):
            end = text.start + min(at + LEARNT, text.count) - 1  # the last token is only what the last law is of
            tokens = torch.tensor(text.sequence.tokens[max(0, end - WINDOW) : end], dtype=torch.int32)
            self._keep(Lesson(tokens, likeliest[at : at + LEARNT].clone(), logs[at : at + LEARNT].clone()))
        text.start += text.count
        text.likeliest, text.logs, text.count = [], [], 0

    def _keep(self, lesson: Lesson) -> None:
        self._new.append(lesson)
        self.held += len(lesson)
        while self.held > self._most and (self.known or len(self._new) > 1):
            self.held -= len((self.known or self._new).popleft())
