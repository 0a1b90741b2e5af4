"""Sequences that one caller of an event loop waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from foreword.engine.commit import commit
from foreword.types import Delta, Origin, Request, TokenLogprob

Event = tuple[Request | None, Delta | BaseException | None]
"""(sequence, event): a delta, an error, or None for its end.

Request None: the event is of the whole job.
"""
Committed = Sequence[tuple[int, Sequence[int]]]
"""(number of the sequence, tokens) of each round."""


@dataclass(slots=True, eq=False)
class Job:
    """Sequences that one caller waits for. Iterating yields (sequence, delta) as rounds
    commit, until all have ended.

    An error of a sequence is raised to the iterating caller.
    """

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    sequences: list[Request] = field(default_factory=list)
    given_up: bool = False

    async def __aiter__(self) -> AsyncIterator[tuple[Request, Delta]]:
        left = len(self.sequences)
        while left:
            sequence, event = await self.events.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            elif sequence is not None:
                yield sequence, event

    async def started(self) -> None:
        """Wait until all sequences are queued.

        Raises InvalidRequest if one cannot be served.
        """
        _, event = await self.events.get()
        if isinstance(event, BaseException):
            raise event


def deliver(several: list[tuple[Job, list[Event]]]) -> None:
    """Give each job its events, in the thread of its loop."""
    for job, events in several:
        for one in events:
            job.events.put_nowait(one)


def repeat(sequences: list[Request], committed: Committed) -> list[Event]:
    """Commit the rounds of another engine; return their events."""
    events: list[Event] = []
    for number, tokens in committed:
        sequence = sequences[number]
        sequence.rounds += 1
        sequence.stats.rounds += 1
        origins: list[Origin] = ["accepted"] * len(tokens)
        delta = commit(sequence, list(tokens), origins, [], 0)
        events.append((sequence, delta))
    return events


def resolve(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[list[TokenLogprob | None]],
    compute: Callable[[], list[TokenLogprob | None]],
) -> None:
    """Compute in this thread and hand the result, or the error, to the
    future's loop.
    """
    try:
        settle = partial(future.set_result, compute())
    except Exception as error:  # noqa: BLE001 - the caller raises it
        settle = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop has ended, so no caller waits
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())
