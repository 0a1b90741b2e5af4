"""Provides one replica: its queue, and what each of its rounds reads, writes and takes,
as the engine schedules them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from foreword.simulate.costs import ReplicaCosts


@dataclass(frozen=True, slots=True)
class Work:
    """What one request needs, whichever replica answers it."""

    prompt: int
    """Tokens to read."""
    answer: int
    """Tokens to write."""
    rounds: int
    """Rounds that write them, the one that reads the prompt's end included."""


@dataclass(slots=True)
class Reading:
    """A request whose prompt is not read to its end."""

    request: int
    left: int
    """Prompt tokens to read."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a round has done: requests by their number."""

    begun: Sequence[int]
    """Requests whose first tokens it wrote."""
    ended: Sequence[int]
    """Requests whose last tokens it wrote."""


class Replica:
    """One server, between its rounds or in one.

    A sequence writes in a known number of rounds, so its last round is known when it
    begins to write, and a round costs the same however many sequences it has.
    """

    def __init__(self, costs: ReplicaCosts, works: Sequence[Work]) -> None:
        self._costs = costs
        self._works = works
        self._waiting: deque[int] = deque()
        self._reading: list[Reading] = []
        """In the order in which they started."""
        self._finishing: list[int] = []
        """Requests whose prompt the current round reads to its end."""
        self._ends: list[tuple[int, int]] = []
        """Heap of (last round, request) of the sequences that write."""
        self._context = 0.0
        """Tokens of the sequences that write."""
        self._growth = 0.0
        """Tokens that they gain in a round."""
        self.rounds = 0
        self.busy = 0.0
        """Seconds in rounds."""
        self.in_round = False

    @property
    def load(self) -> int:
        """Answers that run or wait."""
        return len(self._waiting) + self._running

    @property
    def _running(self) -> int:
        return len(self._ends) + len(self._reading) + len(self._finishing)

    def add(self, request: int) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def start(self) -> float:
        """Start a round of the running requests, and return its seconds."""
        while self._waiting and self._running < self._costs.slots:
            request = self._waiting.popleft()
            prompt = self._works[request].prompt
            self._reading.append(Reading(request, prompt))
        read = self._read()
        finishing = len(self._finishing)
        writing = len(self._ends) + finishing
        prompts = sum(self._works[one].prompt for one in self._finishing)
        seconds = self._costs.round_seconds(
            writing, read - finishing, self._context + prompts
        )
        self.rounds += 1
        self.busy += seconds
        self.in_round = True
        return seconds

    def _read(self) -> int:
        """Read as many prompt tokens as fit into a round, and return their number.

        The last token of a prompt is read whether it fits or not, like the last token
        of an answer.
        """
        left = self._costs.chunk
        total = 0
        unfinished = []
        for one in self._reading:
            read = 1
            if one.left > 1:
                read = min(one.left, left)
                left -= read
            one.left -= read
            total += read
            if one.left:
                unfinished.append(one)
            else:
                self._finishing.append(one.request)
        self._reading = unfinished
        return total

    def end(self) -> Written:
        """End the round, and return what it has written."""
        begun = self._finishing
        self._finishing = []
        self._context += self._growth
        for request in begun:
            work = self._works[request]
            last = self.rounds + work.rounds - 1
            heappush(self._ends, (last, request))
            growth = work.answer / work.rounds
            self._growth += growth
            self._context += work.prompt + growth
        ended = []
        while self._ends and self._ends[0][0] == self.rounds:
            (_, request) = heappop(self._ends)
            work = self._works[request]
            self._growth -= work.answer / work.rounds
            self._context -= work.prompt + work.answer
            ended.append(request)
        self.in_round = False
        return Written(begun, ended)
