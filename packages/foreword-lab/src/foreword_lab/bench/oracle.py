"""A drafter that has the answer and drafts each token correctly with a set probability,
at no cost.

It measures the engine apart from any drafter.
"""

from collections.abc import Sequence
from typing import TypeAlias

from foreword.draft.base import Drafter, chosen
from foreword.errors import InvalidRequest
from foreword.sampling.noise import Stream, uniform
from foreword.types import Batch, Draft, Request

NAME = "oracle"
NODES = 8
ACCEPTANCE = 0.8

_Key: TypeAlias = tuple[int, float, tuple[int, ...]]
"""Seed, temperature and prompt."""


class Oracle(Drafter):
    """Drafts token i of a recorded answer correctly with probability `acceptance`,
    independently for each position.

    Correctness is keyed by (seed, position), so the drafts of an answer are always the
    same. For a request without a recorded answer nothing is drafted.
    """

    def __init__(self, vocab: int, acceptance: float = ACCEPTANCE) -> None:
        """Raises InvalidRequest unless 0 <= acceptance <= 1 and vocab is at least 2."""
        if not 0 <= acceptance <= 1:
            raise InvalidRequest(
                "cannot build an oracle: 'acceptance' must be in [0, 1], got "
                f"{acceptance}"
            )
        if vocab < 2:
            raise InvalidRequest(
                "cannot build an oracle: "
                f"it needs a vocabulary of at least 2 tokens, got {vocab}"
            )
        self._vocab, self._acceptance = vocab, acceptance
        self._draft_tokens: dict[_Key, list[int]] = {}

    def record_answer(
        self, prompt: Sequence[int], temperature: float, seed: int, text: Sequence[int]
    ) -> None:
        """Record the target's answer to a prompt and draw the wrong positions."""
        if not text:
            return
        positions = range(len(prompt), len(prompt) + len(text))
        seeds = [seed] * len(text)
        noise = uniform(seeds, stream=Stream.DRAFT, depths=positions).tolist()
        draft_tokens = [
            token if drawn < self._acceptance else (token + 1) % self._vocab
            for token, drawn in zip(text, noise, strict=True)
        ]
        self._draft_tokens[seed, temperature, tuple(prompt)] = draft_tokens

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return chosen(
            [
                self._propose(request, count)
                for request, count in zip(batch.requests, nodes, strict=True)
            ]
        )

    def _propose(self, request: Request, count: int) -> list[int]:
        prompt = request.source or tuple(request.tokens[: request.prompt])
        drafted = self._draft_tokens.get(
            (request.seed, request.params.temperature, prompt), []
        )
        return drafted[request.produced : request.produced + count]
