"""PROPOSE: the interface of every drafter, and drafts of chosen tokens (tree/sampled.py
makes sampled ones).

Knows batches and distributions; knows nothing about the target, the rule or the engine.
"""

from __future__ import annotations

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
from foreword.types.request import NoiseSource

Source = str | Path | HFModel | Model | None
"""Source of a drafter: a folder or hub id, a model in memory (with or without a
backend), or nothing.
"""


class Drafter(ABC):
    """Proposer of draft tokens for every request in a batch.

    May keep state by request id.
    """

    about: ClassVar[Method] = Method()
    """What is known of the method before its code is imported; methods of Foreword have
    it from the registry.
    """
    proposes: ClassVar[bool] = True
    """It has draft tokens to propose; only plain decoding has none."""
    draws: ClassVar[bool] = False
    """Draft tokens are sampled and come with their distribution q, if the rule compares
    distributions.
    """

    looks_up: ClassVar[bool] = False
    """It drafts from text alone, in microseconds, so that what it would have drafted
    can be scored on the text that another method wrote.
    """

    reads_target: bool = False
    """It reads the target's scores, or shares its keys, and not only the text and
    `hidden_layers`.
    """

    missing: str | None = None
    """Why it stands in for a drafter that could not be loaded; `Request.undrafted` of
    every request.
    """

    hidden_layers: tuple[int, ...] = ()
    """The target's hidden states that it reads, numbered as in transformers: 0 = the
    embeddings, i = after i layers, the last one after the final norm. See
    `on_hidden_states`."""

    names: tuple[str, ...] = ()
    """Names of `arms`, if they have any."""
    labels: tuple[str, ...] = ()
    """The same with their sources, or the method's own name: measured speeds are kept
    under these.
    """

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> Drafter:
        """Make a drafter for a target.

        The default takes no source and needs nothing.
        """
        del target, tokenizer  # for subclasses that need them
        if source is not None:
            raise InvalidRequest(
                f"cannot load {cls.__name__}: it drafts without a draft model. Leave "
                "draft=None"
            )
        return cls()

    @abstractmethod
    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        """Return at most nodes[i] draft tokens for request i.

        An empty tree means that it has none.
        """

    def observe(  # noqa: B027 - a hook, empty by default
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        """Learn from a round after its verification, before the commit.

        `draft` is the one that was scored.
        """

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

    def rereads(self, request: Request) -> bool:
        """Whether `reread` can score it on this request."""
        del request
        return False

    def reread(self, request: Request, noise: NoiseSource) -> list[bool]:
        """Read what others wrote since the last draft; return for each token of the
        answer among it, after the first, whether this drafter would have drafted it
        after the text before it.
        """
        del request, noise
        return []

    @property
    def quantizable(self) -> Model | None:
        """The draft model, if it may be quantized to int8."""
        return None

    @property
    def arms(self) -> Sequence[Drafter]:
        """Drafters, each with its own budget; the engine uses one in each round. Empty:
        this one drafts.
        """
        return ()

    def anew(self) -> Drafter:
        """Return a drafter with the same model that has learnt from no text: this one,
        if it keeps nothing from one text to the next.
        """
        return self

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
    """Return the chain of first children of each tree, for a target or a rule that
    verifies chains only.
    """
    return draft.pruned([tree.first_chain() for tree in draft.trees])


def quantized(drafter: Drafter, target: Model) -> Drafter:
    """Return the drafter, its draft model in int8; the target stays as it is."""
    model = drafter.quantizable
    if model is not None and model.hf is not target.hf:
        model.quantize_int8()
    return drafter


def until_end(tokens: Sequence[int], eos: frozenset[int]) -> list[int]:
    """Return the tokens up to an end-of-text token."""
    for length, token in enumerate(tokens, 1):
        if token in eos:
            return list(tokens[:length])
    return list(tokens)
