"""Many requests at a time, each answered by a function and then written."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from foreword_server.batches.lines import Line
from foreword_server.batches.results import Response

BUSY = (429, 503)
"""Statuses of a server that has too much to do: the request is sent again."""
PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before that: the first time, and most; each pause is twice the one before."""
AHEAD = 2
"""Requests in flight per slot, so that no slot is empty while an answer is written."""


async def run(
    lines: Iterable[Line],
    answer: Callable[[Line], Awaitable[Response]],
    write: Callable[[Line, Response], None],
    width: int,
) -> None:
    """Answer requests, `width` at a time; the first error ends all."""
    waiting = deque(lines)

    async def work() -> None:
        while waiting:
            line = waiting.popleft()
            pause = PAUSE
            while (response := await answer(line)).status in BUSY:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            write(line, response)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(width, len(waiting))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
