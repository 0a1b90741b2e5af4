"""The replay buffer: recent texts with the target's distributions, in bounded memory,
to train a draft model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.estimators import finite
from foreword.types import Request

KEPT = 32
"""Tokens. Likeliest ones whose probabilities are kept; all others are summed."""
WINDOW = 256
"""Tokens. Longest sample, context included."""
LEARNT = 128
"""Most distributions of a sample."""
ROWS = 32
"""Distributions computed at a time; until then raw logits are held."""
LEAST = 1e-6
"""Lower bound of probabilities, so that every logarithm is finite."""


@dataclass(frozen=True, slots=True)
class Sample:
    """End of a text, and the target's distribution after each of its last tokens."""

    tokens: Int[Tensor, "length"]
    likeliest: Int[Tensor, "learnt kept"]
    logs: Float[Tensor, "learnt outcomes"]
    """Log-probabilities at temperature 1, of the likeliest tokens and, last, of all
    others together.
    """

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, most: int) -> Sample:
        """Return its last `most` tokens, with distributions that have at least half of
        them as context if it is cut.
        """
        if len(self) <= most:
            return self
        rows = min(len(self.logs), max(1, most // 2))
        return Sample(self.tokens[-most:], self.likeliest[-rows:], self.logs[-rows:])


def distributions(
    logits: Float[Tensor, "rows vocab"], vocab: int
) -> tuple[Int[Tensor, "rows kept"], Float[Tensor, "rows outcomes"]]:
    """Return the likeliest of the first `vocab` tokens and their log-probabilities; the
    last is of all others.
    """
    best = logits[:, :vocab].float().topk(min(KEPT, vocab - 1))
    logs = best.values - logits.float().logsumexp(-1, keepdim=True)
    rest = (1 - logs.exp().sum(-1, keepdim=True)).clamp_min(LEAST).log()
    return best.indices.int().cpu(), torch.cat([logs, rest], -1).cpu()


def draft_log_probs(
    logits: Float[Tensor, "rows vocab"], likeliest: Int[Tensor, "rows kept"]
) -> Float[Tensor, "rows outcomes"]:
    """Return a draft model's log-probabilities of the same outcomes, from its raw
    logits; differentiable.
    """
    named = likeliest.long()
    others = logits.scatter(-1, named, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, named), others], -1) - logits.logsumexp(
        -1, keepdim=True
    )


@dataclass(slots=True)
class _Text:
    """Running sequence, and the distributions of its tokens from `start` on."""

    sequence: Request
    start: int
    likeliest: list[Tensor] = field(default_factory=list)
    logs: list[Tensor] = field(default_factory=list)
    count: int = 0


class ReplayBuffer:
    """Buffer of the newest samples of running sequences, at most `most` tokens."""

    def __init__(self, vocab: int, most: int) -> None:
        """Take the draft model's `vocab`; the target's further tokens count
        as others.
        """
        self._vocab, self._most = vocab, most
        self._logits: list[tuple[Request, int, Tensor]] = []
        self._texts: dict[int, _Text] = {}
        self._new: deque[Sample] = deque()
        self.seen: deque[Sample] = deque()
        """Samples that `new` returned before, oldest first."""
        self.held = 0
        """Tokens of all samples."""

    def __contains__(self, sequence: Request) -> bool:
        return sequence.id in self._texts or any(
            one.id == sequence.id for one, _, _ in self._logits
        )

    def record(self, sequence: Request, logits: Float[Tensor, "rows vocab"]) -> None:
        """Add the target's raw logits of the tokens that are about to be added to this
        sequence.
        """
        self._logits.append((sequence, len(sequence.tokens), logits))

    def settle(self, *, least: int = ROWS) -> None:
        """Compute the distributions of recorded logits, if there are at least `least`
        rows. Called between rounds.
        """
        if sum(len(logits) for _, _, logits in self._logits) < least:
            return
        recorded, self._logits = self._logits, []
        sizes = [len(logits) for _, _, logits in recorded]
        likeliest, logs = distributions(
            torch.cat([logits for _, _, logits in recorded]), self._vocab
        )
        parts = zip(recorded, likeliest.split(sizes), logs.split(sizes), strict=True)
        for (sequence, start, _), names, values in parts:
            text = self._texts.setdefault(sequence.id, _Text(sequence, start))
            if text.start + text.count != start:  # a round failed, or was not recorded
                self._cut(text)
                text.start = start
            # a stop rule may cut accepted tokens
            emitted = min(len(names), len(sequence.tokens) - start)
            # training on such a distribution would make all weights NaN
            if not finite(float(values.sum())):
                emitted = 0
            text.likeliest.append(names[:emitted])
            text.logs.append(values[:emitted])
            text.count += emitted
            if text.count >= LEARNT:
                self._cut(text)

    def end(self, sequence: Request) -> None:
        """Make samples of the rest of a sequence that has ended."""
        self.settle(least=1)
        text = self._texts.pop(sequence.id, None)
        if text is not None:
            self._cut(text)

    def new(self, size: Callable[[Sample], int], least: int) -> Sequence[Sample]:
        """Return the samples that were not returned before; none if their sizes sum to
        less than `least`.
        """
        if sum(map(size, self._new)) < least:
            return []
        samples = list(self._new)
        self.seen += samples
        self._new.clear()
        return samples

    def _cut(self, text: _Text) -> None:
        """Make samples of the distributions so far, and continue after them."""
        if not text.count:
            return
        likeliest, logs = torch.cat(text.likeliest), torch.cat(text.logs)
        for at in range(0, text.count, LEARNT):
            # the last distribution is that of the last token
            end = text.start + min(at + LEARNT, text.count) - 1
            tokens = torch.tensor(
                text.sequence.tokens[max(0, end - WINDOW) : end], dtype=torch.int32
            )
            self._keep(
                Sample(
                    tokens,
                    likeliest[at : at + LEARNT].clone(),
                    logs[at : at + LEARNT].clone(),
                )
            )
        text.start += text.count
        text.likeliest = []
        text.logs = []
        text.count = 0

    def _keep(self, sample: Sample) -> None:
        self._new.append(sample)
        self.held += len(sample)
        while self.held > self._most and (self.seen or len(self._new) > 1):
            self.held -= len((self.seen or self._new).popleft())
