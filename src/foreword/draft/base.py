"""GUESS: the interface of every drafter, and how chosen guesses become a draft (drawn.py draws the others).

Knows batches and laws; knows nothing about the target, the rule or the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as List
from pathlib import Path
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import HFModel, Model, Tokenizer
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

MODEL, HEAD = "a draft model", "a trained head"
"""What `draft=` may be."""

Source = str | Path | HFModel | Model | None
"""What a drafter is made from: a folder or hub id, a model in memory (driven already or not), or nothing."""


class Drafter(ABC):
    """Guesses the next tokens of every sequence in a batch. May keep state by sequence id."""

    summary: ClassVar[str] = ""
    """One line for `foreword methods`."""
    takes: ClassVar[str] = ""
    """What `draft=` may be: MODEL, or another few words. Empty where it can be nothing."""
    needs: ClassVar[bool] = False
    """It cannot do without."""
    draws: ClassVar[bool] = False
    """Its guesses are drawn from a law that comes with them, where the rule compares laws."""

    learns: ClassVar[bool] = False
    """It guesses with a model of its own, whose weights may change between rounds; see `pupil`."""

    wants: tuple[int, ...] = ()
    """The target's hidden states that it guesses from, numbered as transformers does: 0 = the embeddings, i = after
    i layers, and the last after the final norm too. See `hear`."""

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> Drafter:
        """Make a drafter for a target. The default takes no source and needs nothing."""
        del target, tokenizer  # for those who need them
        if source is not None:
            raise InvalidRequest(f"{cls.__name__} guesses without a draft model; leave draft=None")
        return cls()

    @abstractmethod
    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        """At most nodes[i] guesses for sequence i; 0 asks for none. A count of 0 means nothing to say."""

    def observe(  # noqa: B027 - a hook, empty by default
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        """Called after the decision of a round, before the new tokens are committed. `draft` is what was scored."""

    def hear(  # noqa: B027 - a hook, empty by default
        self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """What the target thought at a sequence's tokens, from number `start` on: the states it `wants`, side by side.

        Called after every forward, with each token that stays, once and in order; prompts come in parts.
        """

    def rest(self, took: float) -> None:  # noqa: B027 - a hook, empty by default
        """Called between rounds, when nothing is being guessed or judged. `took`: seconds of the last round.

        The only moment in which what later guesses are drawn from may change; requests wait meanwhile.
        """

    @property
    def pupil(self) -> Model | None:
        """The model that guesses, where it `learns`."""
        return None

    def release(self, sequence: Sequence) -> None:  # noqa: B027 - a hook, empty by default
        """The sequence has ended; forget it."""


def chosen(guesses: List[List[int]]) -> Draft:
    """A chain of chosen tokens for each sequence; chosen means: not drawn from a law that a rule must know."""
    return Draft([Tree(list(guess), list(range(-1, len(guess) - 1))) for guess in guesses])


def first_chain(draft: Draft) -> Draft:
    """The chain of a tree's first children, for a target or a rule that judges chains only."""
    return draft.pruned([tree.trunk() for tree in draft.trees])
