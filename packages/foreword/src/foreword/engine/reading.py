"""Feedback by reading: what draft models that are not in use would have drafted on the
text that another method writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from foreword.budget.choice import Choice, Text
from foreword.budget.estimates import DEPTHS
from foreword.types import Request

if TYPE_CHECKING:
    from foreword.engine.member import Member

READING = 0.002
"""Share of the time that reading by draft models may take."""
REFUND = 0.05
"""Share of the time that drafting won, which reading may take besides: where a method
pays at times, it is worth knowing when.
"""
SAVED = 8.0
"""Rounds. Time that may be saved up."""
BLOCK, LARGEST = 16, 64
"""Tokens that a draft model falls behind before it reads them in one forward: where
drafting has won the time for it or the text is new, and else, since a longer block
takes less per token.
"""


@dataclass(slots=True)
class Allowance:
    """Seconds that may be spent on feedback: a share of all time, and of gains."""

    share: float
    seconds: float = 0.0
    won: float = 0.0
    """Seconds besides, while no draft model is in use: the one in use needs none."""

    def grant(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self.seconds = min(self.seconds + self.share * took, SAVED * took)

    def refund(self, won: float, took: float) -> None:
        """Grant a share of the seconds that a round has won; a plain one takes so many
        seconds as `took`.
        """
        if won > 0:
            self.won = min(self.won + REFUND * won, SAVED * took)

    def covers(self, price: float) -> bool:
        """Whether so many seconds may be spent."""
        return self.seconds >= price

    def covers_block(
        self, behind: int, price: float, *, is_new: bool, idle: bool
    ) -> bool:
        """Whether a draft model that is `behind` by so many tokens may read them in
        `price` seconds; `is_new`: it has read nothing of the answer, `idle`: no draft
        model is in use.
        """
        if behind < BLOCK:
            return False
        if idle and self.won >= price:
            return True
        return (is_new or behind >= LARGEST) and self.seconds >= price

    def spend(self, seconds: float, *, idle: bool = False) -> None:
        """Record seconds that were spent; `idle`: of what was won first."""
        if idle:
            paid = min(self.won, seconds)
            self.won -= paid
            seconds -= paid
        self.seconds -= seconds


class Reader:
    """Lets draft models that are not in use read what was written, within a share of
    the time.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._models = [
            number for number, one in enumerate(members) if not one.drafter.looks_up
        ]
        self._reading = Allowance(READING)

    def save_up(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self._reading.grant(took)

    def refund(self, won: float, took: float) -> None:
        """Grant a share of the seconds that a round has won; a plain one takes so many
        seconds as `took`.
        """
        self._reading.refund(won, took)

    def read(
        self,
        request: Request,
        choice: Choice,
        text: Text,
        read: dict[int, int],
        plain: float,
    ) -> None:
        """Let a draft model that is not in use read, if it is due; `plain`: seconds of
        a plain round.
        """
        if choice.guard.stops_models:
            return
        for number in self._models:
            member = self._members[number]
            behind = len(request.tokens) - max(read.get(number, 0), request.prompt)
            if (
                number == text.method
                or behind < BLOCK
                or not member.rule.shares_noise
                or member.failures.is_off(request)
                or not member.drafter.rereads(request)
            ):
                continue
            unread = len(request.tokens) - read.get(number, 0)
            price = choice.prices[number]
            expected = price.reading * unread * plain
            idle = choice.current not in self._models
            is_new = read.get(number, 0) <= request.prompt
            if not self._reading.covers_block(
                behind, expected, is_new=is_new, idle=idle
            ):
                continue
            before = perf_counter()
            agrees: list[bool] = []
            with member.failures.contained(request):
                agrees = member.drafter.reread(request, member.draws)
            took = perf_counter() - before
            self._reading.spend(took, idle=idle)
            choice.guard.charge(took / plain)
            price.read(unread, took / plain)
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
