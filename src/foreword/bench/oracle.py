"""A drafter that has seen the answer and foresees each token with a set probability, at no cost.

Measures the engine apart from any drafter. Knows reference texts; knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from foreword.draft.base import Drafter, chosen
from foreword.errors import InvalidRequest
from foreword.noise import Stream, uniform
from foreword.types import Batch, Draft, Sequence

NAME = "oracle"
NODES = 8
ACCEPTANCE = 0.8


class Oracle(Drafter):
    """Guesses token i of a known text right with probability `acceptance`, each position on its own.

    Whether a position is foreseen is keyed by (seed, position), so a text is always guessed in the same way. Texts that
    were never told are not guessed at.
    """

    summary = "foresees the target's own text with a set probability; for measuring only"

    def __init__(self, vocab: int, acceptance: float = ACCEPTANCE) -> None:
        """Raises InvalidRequest unless 0 <= acceptance <= 1 and there are two tokens to choose between."""
        if not 0 <= acceptance <= 1:
            raise InvalidRequest(f"acceptance must be in [0, 1], got {acceptance}")
        if vocab < 2:
            raise InvalidRequest(f"an oracle needs a vocabulary of at least 2 tokens to be wrong in, got {vocab}")
        self._vocab, self._acceptance = vocab, acceptance
        self._foreseen: dict[tuple[int, float, tuple[int, ...]], list[int]] = {}

    def foresee(self, prompt: List[int], temperature: float, seed: int, text: List[int]) -> None:
        """Learn what the target says to a prompt, and decide at which positions to be wrong."""
        if not text:
            return
        positions = range(len(prompt), len(prompt) + len(text))
        chance = uniform([seed] * len(text), positions, stream=Stream.DRAFT).tolist()
        guesses = [
            token if luck < self._acceptance else (token + 1) % self._vocab
            for token, luck in zip(text, chance, strict=True)
        ]
        self._foreseen[seed, temperature, tuple(prompt)] = guesses

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return chosen([self._guess(sequence, count) for sequence, count in zip(batch.sequences, nodes, strict=True)])

    def _guess(self, sequence: Sequence, count: int) -> list[int]:
        prompt = tuple(sequence.tokens[: sequence.prompt])
        known = self._foreseen.get((sequence.seed, sequence.params.temperature, prompt), [])
        return known[sequence.produced : sequence.produced + count]
