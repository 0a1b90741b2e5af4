"""The interface of budget policies (draft tokens per round), and the fixed budget."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.types import Batch, Clock, Draft, Request

Measure = Callable[[], Mapping[int, float]]
"""Function that measures the seconds of a forward by its number of rows."""


class DraftBudget(ABC):
    """Policy for the number of draft tokens of each request, which learns from the
    outcome of each round.

    It never sees a sampled draft token: whether one is scored must not depend on its
    value (docs/guarantees.md). Its inputs are fixed before sampling: past rounds, and
    the distribution that follows a prefix.
    """

    @classmethod
    def from_text(cls, source: str) -> "Callable[[Measure], DraftBudget]":
        """Return a factory from the text after the name and a colon. It makes the
        policy for a target whose forwards a `Measure` measures; the default ignores it.

        Raises InvalidRequest if the text is invalid.
        """
        if source:
            raise InvalidRequest(
                f"cannot use the budget option {source!r}: this budget takes nothing "
                "after its name. Leave it out"
            )
        return lambda _: cls()

    def anew(self) -> "DraftBudget":
        """Return a policy with the same settings and costs for one of several methods:
        this one, if it learns nothing of a method.
        """
        return self

    @property
    def label(self) -> str:
        """Return the policy in a word, for what is kept about it."""
        return type(self).__name__

    @property
    def never(self) -> bool:
        """Whether it never allows draft tokens: plain decoding."""
        return False

    def priced(self, batch: Batch) -> Batch:
        """Return the batch with what draft tokens must earn: `floor`, `expand` and
        `pace`. Called if something is drafted; the default ignores time.
        """
        return batch

    @abstractmethod
    def nodes(self, request: Request, others: int) -> int:
        """Return a request's most draft tokens beside `others` in the next round."""

    def trim(self, draft: Draft) -> Draft:
        """Return the draft without tokens that do not pay. Not for sampled drafts."""
        return draft

    def learn(self, request: Request, outcome: "RoundResult") -> None:  # noqa: B027 - a hook, empty by default
        """Receive the outcome of a round for a request."""

    def release(self, request: Request) -> None:  # noqa: B027 - a hook, empty by default
        """Forget a request that has ended."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Outcome of one round of one request."""

    asked: int
    """Draft tokens requested; 0 where none should be drafted."""
    drafted: int
    """Depth of the deepest draft token; for a chain, their number."""
    accepted: int
    clock: Clock = field(default_factory=Clock)
    """Seconds of the round, for the whole batch."""
    reading: bool = False
    """Whether prompt tokens were read in the same forward."""


class StoppingBudget(DraftBudget):
    """Policy that may stop after every draft token, so drafts are chains, not trees."""

    @abstractmethod
    def stops(
        self, request: Request, depth: int, distribution: Float[Tensor, "vocab"]
    ) -> bool:
        """Return whether to stop after `depth` draft tokens, which `distribution`
        (log-weights) follows.

        Called before the next token is sampled. The decision depends on the prefix
        alone, so it is exact under every rule.
        """


class FixedBudget(DraftBudget):
    """Constant number of draft tokens."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def label(self) -> str:
        return f"{self.count} draft tokens"

    @property
    def never(self) -> bool:
        return self.count == 0

    def nodes(self, request: Request, others: int) -> int:
        return self.count
