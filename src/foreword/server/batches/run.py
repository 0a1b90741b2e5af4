"""Many requests at a time, each answered by a function and then written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from foreword.server.batches.lines import Line
from foreword.server.batches.results import Response

BUSY = (429, 503)
"""Statuses of a server that has too much to do: the request is sent again."""
PAUSE = 1.0
"""Seconds before that."""
AHEAD = 2
"""Requests in flight per slot, so that no slot is empty while an answer is written."""
Post = Callable[[str, dict[str, Any]], Awaitable[Response]]
"""Answers a body sent to a path."""


async def run(
    lines: Iterable[Line],
    body: Callable[[Line], dict[str, Any]],
    post: Post,
    write: Callable[[Line, Response], None],
    width: int,
) -> None:
    """Answer these requests, at most `width` at a time.

    Raises the first error of `body`, `post` or `write`; it ends all.
    """
    waiting = deque(lines)

    async def work() -> None:
        while waiting:
            line = waiting.popleft()
            given = body(line)
            while (response := await post(line.url, given)).status in BUSY:
                await asyncio.sleep(PAUSE)
            write(line, response)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(width, len(waiting))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
