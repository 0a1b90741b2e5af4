"""Feedback by reading: what idle draft models would have drafted on the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from foreword.budget.choice import Choice, Text
from foreword.budget.estimates import DEPTHS
from foreword.draft.tree.drafter import ModelDrafter
from foreword.types import Request

if TYPE_CHECKING:
    from foreword.engine.member import Member

READING = 0.002
"""Share of the time that reading by draft models may take: less than drafting may lose
(SHARE), so that something is left for tries.
"""
SAVED = 8.0
"""Rounds. Time that may be saved up."""
BLOCK, LARGEST = 16, 64
"""Tokens that a draft model falls behind before it reads them in one forward: where it
has read nothing of the answer, and else, since a longer block takes less per token.
"""


@dataclass(slots=True)
class Allowance:
    """Seconds that may be spent on feedback: a share of all time."""

    share: float
    seconds: float = 0.0

    def grant(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self.seconds = min(self.seconds + self.share * took, SAVED * took)

    def covers(self, price: float) -> bool:
        """Whether so many seconds may be spent."""
        return self.seconds >= price

    def spend(self, seconds: float) -> None:
        """Record seconds that were spent."""
        self.seconds -= seconds


class Reader:
    """Lets idle draft models read what was written, within a share of the time."""

    def __init__(self, members: "Sequence[Member]") -> None:
        self._members = members
        self._models = {
            number: member.drafter
            for number, member in enumerate(members)
            if isinstance(member.drafter, ModelDrafter)
        }
        self._reading = Allowance(READING)

    def save_up(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self._reading.grant(took)

    def read(
        self,
        request: Request,
        choice: Choice,
        text: Text,
        read: dict[int, int],
        plain: float,
    ) -> None:
        """Let an idle draft model read, if due; `plain`: seconds of a plain round."""
        if choice.guard.stops_models:
            return
        for number, drafter in self._models.items():
            member = self._members[number]
            behind = len(request.tokens) - max(read.get(number, 0), request.prompt)
            is_new = read.get(number, 0) <= request.prompt
            if (
                number == text.method
                or behind < (BLOCK if is_new else LARGEST)
                or not member.rule.shares_noise
                or member.failures.is_off(request)
                or not drafter.rereads(request)
            ):
                continue
            unread = len(request.tokens) - read.get(number, 0)
            price = choice.prices[number]
            if not self._reading.covers(price.reading(unread) * plain):
                continue
            before = perf_counter()
            agrees: list[bool] = []
            with member.failures.contained(request):
                agrees = drafter.reread(request, member.draws)
            took = perf_counter() - before
            self._reading.spend(took)
            choice.guard.charge(took / plain)
            price.unread.learn(unread, took / plain)
            read[number] = len(request.tokens)
            for accepted in runs(agrees):
                choice.saw(text, number, DEPTHS, accepted)
            choice.reconsider()
            return


def runs(agrees: Sequence[bool], most: int = DEPTHS) -> list[int]:
    """Return the accepted draft tokens of each round in which chains of `most` would
    have written a text, without the last one, which the end has cut.

    `agrees[i]`: whether the drafter would have drafted token i after those before it.
    """
    lengths, run = list[int](), 0
    for agreed in agrees:
        if agreed and run < most:
            run += 1
        else:
            lengths.append(run)
            run = 0
    return lengths
