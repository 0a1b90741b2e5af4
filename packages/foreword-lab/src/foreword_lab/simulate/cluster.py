"""Event simulation of replicas behind a router; every round is one event."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import attrgetter

import numpy as np

from foreword.estimators import ReadingShare
from foreword_lab.simulate.costs import ReplicaCosts
from foreword_lab.simulate.load import Load, LoadRequest


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
        self._share = ReadingShare()
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
        is_shared = bool(self._ends) or any(one.left == 1 for one in self._reading)
        read = self._read()
        finishing = len(self._finishing)
        writing = len(self._ends) + finishing
        prompts = sum(self._works[one].prompt for one in self._finishing)
        seconds = self._costs.round_seconds(
            writing, read - finishing, self._context + prompts
        )
        if is_shared:
            self._share.measure(seconds, read - finishing)
        self.rounds += 1
        self.busy += seconds
        self.in_round = True
        return seconds

    def _read(self) -> int:
        """Read as many prompt tokens as fit into a round, and return their number.

        The last token of a prompt is read whether it fits or not, like the last token
        of an answer.
        """
        last = [one for one in self._reading if one.left == 1]
        prompts = [one for one in self._reading if one.left > 1]
        left = self._costs.chunk
        if last or self._ends:
            left = self._share.limit(left)
        total = len(last)
        for prompt in last:
            prompt.left = 0
        for prompt in self._share.in_turn(prompts, attrgetter("left")):
            read = min(prompt.left, left)
            left -= read
            prompt.left -= read
            total += read
        self._finishing += [one.request for one in self._reading if not one.left]
        self._reading = [one for one in self._reading if one.left]
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


END = 0
"""Kind of event: a round ends. Kinds are in their order at the same second."""
ARRIVAL = 1
"""Kind of event: a request arrives, after the rounds that end."""
START = 2
"""Kind of event: a round starts, and sees all that have arrived."""
RETRY = 1.0
"""Seconds that a refused client waits at least (the server's Retry-After)."""
STEP = 32
"""Answers of the server that add a second to them."""
REPORT = 1000
"""Requests between two calls of the progress."""
ROUNDING = 1e-9
"""Share of a round that is rounding error, not a further round."""

Progress = Callable[[int], None]
"""Called now and then with the number of requests that are over."""


@dataclass(slots=True)
class Times:
    """The times of one request, in seconds; NaN until then."""

    sent: float = math.nan
    first: float = math.nan
    """When its first tokens were written."""
    last: float = math.nan
    """When its last tokens were written."""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of every request, and what the replicas did."""

    times: list[Times]
    rounds: int
    busy: float
    """Seconds in rounds, of all replicas together."""


class Router:
    """Sends each request to the replica with the fewest answers that run or wait; to
    the first one among equals.
    """

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        self._heap = [(0, place) for place in range(len(replicas))]
        """(load, replica). Entries whose load has changed are outdated, and skipped."""

    def least(self) -> int:
        """Return the replica that gets the next request."""
        while True:
            load, number = self._heap[0]
            if self._replicas[number].load == load:
                return number
            heappop(self._heap)

    def changed(self, number: int) -> None:
        """Note that the load of a replica has changed."""
        load = self._replicas[number].load
        heappush(self._heap, (load, number))


class Cluster:
    """Replicas of one server under one load."""

    def __init__(self, costs: ReplicaCosts, load: Load, replicas: int) -> None:
        self._costs = costs
        self._load = load
        works = works_of(costs, load)
        self._replicas = [Replica(costs, works) for _ in range(replicas)]
        self._router = Router(self._replicas)
        self._times = [Times() for _ in works]
        self._events: list[tuple[float, int, int]] = []
        """Heap of (second, kind, request or replica)."""
        self._sent = 0
        """Requests that clients have sent."""
        self._over = 0

    def run(self, progress: Progress = lambda _: None) -> Outcome:
        """Simulate until every request has ended or was refused."""
        self._begin()
        while self._events:
            now, kind, which = heappop(self._events)
            if kind == ARRIVAL:
                self._arrive(now, which)
            elif kind == START:
                self._start(now, which)
            else:
                self._end(now, which, progress)
        progress(self._over)
        return Outcome(
            self._times,
            sum(one.rounds for one in self._replicas),
            sum(one.busy for one in self._replicas),
        )

    def _begin(self) -> None:
        """Send the first request of each client, or all requests of a trace."""
        if self._load.clients is not None:
            for _ in range(self._load.clients):
                self._send(0.0)
            return
        for number, request in enumerate(self._load.requests):
            self._times[number].sent = request.arrival
            arrival = request.arrival + self._costs.request
            self._events.append((arrival, ARRIVAL, number))
        heapify(self._events)

    def _send(self, now: float) -> None:
        """Send the next request of a client, if one is left."""
        number = self._sent
        if number == len(self._times):
            return
        self._sent += 1
        self._times[number].sent = now
        arrival = now + self._costs.request
        heappush(self._events, (arrival, ARRIVAL, number))

    def _arrive(self, now: float, request: int) -> None:
        """Queue a request, or refuse it."""
        number = self._router.least()
        replica = self._replicas[number]
        if replica.load >= self._costs.queue:
            self._times[request].refused = True
            self._over += 1
            if self._load.clients is not None:
                self._send(now + RETRY + replica.load // STEP)
            return
        replica.add(request)
        self._router.changed(number)
        if not replica.in_round and replica.load == 1:
            heappush(self._events, (now, START, number))

    def _start(self, now: float, number: int) -> None:
        seconds = self._replicas[number].start()
        heappush(self._events, (now + seconds, END, number))

    def _end(self, now: float, number: int, progress: Progress) -> None:
        """End a round: clients that got their answer go on, and so does the replica."""
        replica = self._replicas[number]
        written = replica.end()
        for request in written.begun:
            self._times[request].first = now
        for request in written.ended:
            self._times[request].last = now
            self._over += 1
            if self._over % REPORT == 0:
                progress(self._over)
            if self._load.clients is not None:
                self._send(now)
        if written.ended:
            self._router.changed(number)
        if replica.load:
            heappush(self._events, (now, START, number))


def works_of(costs: ReplicaCosts, load: Load) -> list[Work]:
    """Return what each request needs.

    The tokens of its rounds depend on the seed and its place alone, so that they are
    the same however many replicas there are.
    """
    generator = np.random.default_rng([load.seed, 3])
    return [
        Work(one.prompt_tokens, one.answer_tokens, _rounds(costs, one, generator))
        for one in load.requests
    ]


def _rounds(
    costs: ReplicaCosts, request: LoadRequest, generator: np.random.Generator
) -> int:
    """Return the rounds that write an answer."""
    answer = request.answer_tokens
    if request.acceptance is None and isinstance(costs.tokens, tuple):
        edges = np.cumsum(costs.tokens)
        drawn = generator.random(answer) * edges[-1]
        tokens = 1 + np.searchsorted(edges, drawn, side="right")
        written = np.cumsum(tokens)
        return 1 + int(np.searchsorted(written, answer))
    mean = costs.mean_tokens(request.acceptance)
    return max(1, math.ceil(answer / mean - ROUNDING))
