"""Requests that one caller of an event loop waits for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from foreword.engine.commit import commit
from foreword.types import Delta, Origin, Request, Round, TokenLogprob

Event = tuple[Request | None, Delta | BaseException | None]
"""(request, event): a delta, an error, None at its end; request None: of the job."""
Committed = Sequence[tuple[int, Sequence[int], Round | None]]
"""(number of the request, tokens, trace) of each round."""


@dataclass(slots=True, eq=False)
class Job:
    """Requests that one caller waits for. Iterating yields (request, delta) as rounds
    commit, until all have ended.

    An error of a request is raised to the iterating caller.
    """

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    requests: list[Request] = field(default_factory=list)
    given_up: bool = False

    async def __aiter__(self) -> AsyncIterator[tuple[Request, Delta]]:
        left = len(self.requests)
        while left:
            request, event = await self.events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            elif request is not None:
                yield request, event

    async def started(self) -> None:
        """Wait until all are queued. Raises InvalidRequest if one cannot be served."""
        _, event = await self.events.get()
        if isinstance(event, BaseException):
            raise event

    @property
    def runs(self) -> bool:
        """Whether a request has not ended."""
        return any(one.finish_reason is None for one in self.requests)

    def unread(self) -> list[Event]:
        """Take what a round left for the caller; the end, if no request runs."""
        events: list[Event] = []
        for request in self.requests:
            while request.unread:
                events.append((request, request.unread.popleft()))
            if request.error is not None:
                events.append((request, request.error))
        return (
            events if self.runs else [*events, *((one, None) for one in self.requests)]
        )


def send(events: dict[Job, list[Event]]) -> list[Job]:
    """Put events into the callers' queues, with one wake-up per event loop. Return the
    jobs whose loop has ended without closing its iterators, so that no caller waits.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, list[Event]]]] = {}
    for job, several in events.items():
        if several:
            by_loop.setdefault(job.loop, []).append((job, several))
    left: list[Job] = []
    for loop, several in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, several)
        except RuntimeError:
            left += [job for job, _ in several]
    return left


def _deliver(several: list[tuple[Job, list[Event]]]) -> None:
    """Give each job its events, in the thread of its loop."""
    for job, events in several:
        for event in events:
            job.events.put_nowait(event)


def repeat(requests: list[Request], committed: Committed) -> list[Event]:
    """Commit the rounds of another engine; return their events."""
    events: list[Event] = []
    for number, tokens, trace in committed:
        request = requests[number]
        if request.finish_reason is not None:
            continue
        request.rounds += 1
        request.stats.rounds += 1
        origins: list[Origin] = ["accepted"] * len(tokens)
        delta = commit(request, list(tokens), origins, [], 0)
        events.append((request, replace(delta, round=trace)))
    return events


def resolve(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[list[TokenLogprob | None]],
    compute: Callable[[], list[TokenLogprob | None]],
) -> None:
    """Compute in this thread; hand the result or the error to the future's loop."""
    try:
        settle = partial(future.set_result, compute())
    except Exception as error:  # noqa: BLE001 - the caller raises it
        settle = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop has ended, so no caller waits
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())
