"""Runs work of a request in a thread, and has it end when the client leaves."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from threading import Event
from typing import Any, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foreword.wanted import check_wanted, dropped_when

T = TypeVar("T")
End = Literal["done", "left", "stopped"]
"""How work for a client ended: it was done, the client left, the server stopped."""


class Silence(Response):
    """No response: the client has left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def while_connected(
    http_request: Request, threads: Executor | None, work: Callable[[], T]
) -> T:
    """Return what `work` returns, computed in one of the threads; None stands for
    the threads of the event loop. The body of the request must have been read.

    Once the client has left, or this task is cancelled, `check_wanted` raises Abandoned
    in the thread. The thread is waited for, so that what the request holds is freed
    only after its work.
    """
    left = Event()

    def run() -> T:
        with dropped_when(left.is_set):
            check_wanted()  # the client may have left before a thread was free
            return work()

    running = asyncio.get_running_loop().run_in_executor(threads, run)
    gone = asyncio.create_task(disconnected(http_request.receive))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            left.set()
        return await running
    finally:
        left.set()
        gone.cancel()


async def first_end(
    work: Coroutine[Any, Any, None], receive: Receive, stopped: asyncio.Event
) -> End:
    """Run work until it is done, the client leaves, or the server has to stop; return
    which came first. What is left of the work is cancelled, and its errors are raised.
    The body of the request must have been read.
    """
    running = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    stopping = asyncio.create_task(stopped.wait())
    tasks = (running, gone, stopping)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            return "done"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return "left" if gone.done() else "stopped"
    finally:
        for task in tasks:
            task.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the client has left. The body of the request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
