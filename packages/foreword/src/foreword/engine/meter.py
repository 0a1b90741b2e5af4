"""Measures rounds for metrics: times at which requests emit tokens, tokens a round."""

from collections.abc import Iterable, Sequence
from time import perf_counter

from foreword.engine.scheduler import ScheduledRequest
from foreword.types import Delta, Request, Tally

SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    300,
)
"""Bounds of tallies of times."""
TOKENS = (1, *(2**power for power in range(3, 15)))
"""Bounds of the tally of tokens of a round, as vLLM has them: 1, 8, 16 to 16,384."""


class Meter:
    """Tallies of one engine, from its first round on."""

    def __init__(self) -> None:
        self.gaps = Tally(SECONDS)
        """Seconds from one round that emitted tokens of a request to the next."""
        self.tokens = Tally(TOKENS)
        """Tokens of the rounds that emitted any, as vLLM counts them.

        The tokens emitted, and the whole prompt of each request whose first token is
        among them.
        """

    def begin(self, request: Request) -> None:
        """Note when a request's first tokens are scheduled, before any preemption."""
        if request.moments.begun is None:
            request.moments.begun = perf_counter()

    def count(
        self, scheduled: Iterable[ScheduledRequest], deltas: Sequence[Delta]
    ) -> None:
        """Count a round, after its deltas are committed."""
        if not deltas:
            return
        now = perf_counter()
        emitted = {delta.id for delta in deltas}
        tokens = sum(len(delta.tokens) for delta in deltas)
        for request in (entry.request for entry in scheduled):
            if request.id not in emitted:
                continue
            moments = request.moments
            if moments.last is None:
                moments.first = now
                tokens += len(request.given)
            else:
                self.gaps.add(now - moments.last)
            moments.last = now
        self.tokens.add(tokens)
