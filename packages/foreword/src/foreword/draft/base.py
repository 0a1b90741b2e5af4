"""PROPOSE: the interface of every drafter, and drafts of chosen tokens (tree/sampled.py
makes sampled ones).

Knows batches and distributions; knows nothing about the target, the rule or the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import HFModel, Model, Tokenizer
from foreword.registry import Method
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

Source = str | Path | HFModel | Model | None
"""Source of a drafter: a folder or hub id, a model in memory, or None."""


class Drafter(ABC):
    """Proposer of draft tokens for a batch. May keep state by request id."""

    about: ClassVar[Method] = Method()
    """What is known before its code is imported; Foreword's are in the registry."""
    reads_target: bool = False
    """It reads the target's scores or keys, not only text and `hidden_layers`."""

    hidden_layers: tuple[int, ...] = ()
    """The target's hidden states that it reads, numbered as in transformers: 0 = the
    embeddings, i = after i layers, the last one after the final norm. See
    `on_hidden_states`."""

    label: str = ""
    """The method with its source: measured speeds are kept under it."""

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "Drafter":
        """Make a drafter for a target. The default needs no source."""
        del target, tokenizer  # for subclasses that need them
        if source is not None:
            raise InvalidRequest(
                f"cannot load {cls.__name__}: it drafts without a draft model. Leave "
                "draft=None"
            )
        return cls()

    @abstractmethod
    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        """Return at most nodes[i] draft tokens for request i; an empty tree: none."""

    def observe(  # noqa: B027 - a hook, empty by default
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        """Learn from a verified round before its commit; `draft` is what was scored."""

    def on_hidden_states(  # noqa: B027 - a hook, empty by default
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Receive the target's hidden states at a request's tokens from `start` on:
        `hidden_layers`, concatenated.

        Called after every forward, with each token that stays, once and in order;
        prompts come in chunks.
        """

    def rest(self, took: float) -> None:  # noqa: B027 - a hook, empty by default
        """Work between rounds, when nothing is being drafted or verified. `took`:
        seconds of the last round.

        Only here may later distributions of the drafter change; requests wait
        meanwhile.
        """

    def release(self, request: Request) -> None:  # noqa: B027 - a hook, empty by default
        """Forget a request that has ended."""


def chosen(draft_tokens: Sequence[Sequence[int]]) -> Draft:
    """Return a chain of chosen tokens per request; chosen = not sampled from a
    distribution that a rule must know.
    """
    return Draft(
        [
            DraftTree(list(tokens), list(range(-1, len(tokens) - 1)))
            for tokens in draft_tokens
        ]
    )


def first_chain(draft: Draft) -> Draft:
    """Return each tree's chain of first children, where only chains are verified."""
    return draft.pruned([tree.first_chain() for tree in draft.trees])


def until_end(tokens: Sequence[int], eos: frozenset[int]) -> list[int]:
    """Return the tokens up to an end-of-text token."""
    for length, token in enumerate(tokens, 1):
        if token in eos:
            return list(tokens[:length])
    return list(tokens)
