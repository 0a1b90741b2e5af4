"""Scheduling by priority: the requests of a round, and the prompt tokens of each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from foreword.checks import whole
from foreword.estimators import ReadingShare
from foreword.types import Request

FAIR = 8
"""Every so many starts the oldest request starts next, so that none waits for ever."""

Admits = Callable[[Request], bool]
"""Whether a request may start now."""
Begin = Callable[[Request], None]
"""Called before a request's first tokens are scheduled; may set `Request.cached`."""


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's slice of a round."""

    request: Request
    read: int
    """Pending tokens to read this round."""
    writes: bool
    """Whether all pending tokens are read; fixed, as the round changes them."""


class Scheduler:
    """Queue of requests: at most `slots` run at a time, and a round reads at most
    `chunk` prompt tokens.

    The waiting request with the smallest `SamplingParams.priority` starts first; among
    equals, the earliest one. A long prompt is read in chunks beside the decoding of
    other requests, in their `share` of a round, so it does not stall them.
    """

    def __init__(
        self, *, slots: int = 8, chunk: int = 512, read_ms: int | None = None
    ) -> None:
        """`read_ms`: milliseconds by which reading may lengthen a round in which other
        requests write; None: as long as the round takes without it.
        """
        at_least_one = whole(1)  # with 0 of either, no request would ever run
        self.slots = at_least_one("slots", slots)
        self.chunk = at_least_one("chunk", chunk)
        whole(1, optional=True)("read_ms", read_ms)
        self.share = ReadingShare(None if read_ms is None else read_ms / 1000)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._ranks: dict[int, tuple[float, int]] = {}
        """Request id -> (priority, number of its arrival); the smallest goes first."""
        self._arrivals = count()
        self._starts = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._ranks[request.id] = request.params.priority, next(self._arrivals)
        self.waiting.append(request)

    def next(
        self, admits: Admits = lambda _: True, begin: Begin = lambda _: None
    ) -> list[ScheduledRequest]:
        """Return the requests of the next round; prompts that do not fit into the
        chunk come after the rest.

        If the first request of the queue is not admitted, no other one starts before
        it.
        """
        while self.waiting and len(self.running) < self.slots:
            request = self._first()
            if not admits(request):
                break
            self.waiting.remove(request)
            self.running.append(request)
            self._starts += 1
        reads = self._reads(begin)
        return [
            ScheduledRequest(
                request,
                reads[request.id],
                writes=reads[request.id] == _pending(request),
            )
            for request in self.running
            if reads.get(request.id)
        ]

    def _reads(self, begin: Begin) -> dict[int, int]:
        """Return how many tokens each running request reads, by its id."""
        prompts = []
        reads = {}
        for request in self.running:
            if not request.cached and len(request.tokens) == 1:
                begin(request)
            if _pending(request) == 1:
                reads[request.id] = 1
            else:
                prompts.append(request)
        left = most = self.share.limit(self.chunk) if reads else self.chunk
        for request in self.share.in_turn(prompts, _pending):
            if not left:
                break
            if not request.cached:
                begin(request)
            read = min(_pending(request), left)
            read = _uncut(request, read, full=left == most)
            reads[request.id] = read
            left = max(0, left - read)
        return reads

    def measure(self, scheduled: Sequence[ScheduledRequest], seconds: float) -> None:
        """Learn from a round how much of a prompt one may read while others write."""
        if any(entry.read == 1 and entry.writes for entry in scheduled):
            read = sum(entry.read - entry.writes for entry in scheduled)
            self.share.measure(seconds, read)

    def preempt(self) -> Request:
        """Put the running request that came last, of those with the worst priority,
        back into the queue.

        It keeps its place there: before all that came after it.
        """
        request = max(self.running, key=self._rank)
        self.running.remove(request)
        self.waiting.append(request)
        return request

    def retire(self, request: Request) -> None:
        """Remove a request that has ended or was aborted."""
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
                del self._ranks[request.id]

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return not self.running and not self.waiting

    def _first(self) -> Request:
        """Return the request that starts next; fairness goes before priority."""
        if (self._starts + 1) % FAIR:
            return min(self.waiting, key=self._rank)
        request = min(self.waiting, key=lambda request: self._ranks[request.id][1])
        self._ranks[request.id] = -math.inf, self._ranks[request.id][1]
        return request

    def _rank(self, request: Request) -> tuple[float, int]:
        return self._ranks[request.id]


def _pending(request: Request) -> int:
    return len(request.tokens) - request.cached


def _uncut(request: Request, read: int, *, full: bool) -> int:
    """Return how many pending tokens to read so that no part that must be read whole is
    cut.

    Up to the part, or to its end where nothing else is read in this round and nothing
    comes before it.
    """
    end = request.cached + read
    for start, stop in () if request.images is None else request.images.whole:
        if start < end < stop:
            return (
                stop - request.cached
                if full and start <= request.cached
                else max(0, start - request.cached)
            )
    return read
