"""Process of a replica: it takes its place, loads, serves, and ends with its router."""

import multiprocessing
import os
import shutil
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

# torch must not be imported before the process has its cores
if TYPE_CHECKING:
    from foreword_server.replicas.places import Place
    from foreword_server.replicas.process import Start


def run(start: "Start", cores: "Place", path: Path, ready: Connection) -> None:
    """Serve at a path until SIGTERM; SIGINT is the router's. `ready` gets what the
    server says of itself, or why it cannot serve.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cores.take()
    Thread(target=_end_with_router, args=(path.parent,), daemon=True).start()
    from foreword.errors import ForewordError, words
    from foreword_server.replicas.process import bound
    from foreword_server.run import serve

    try:
        from foreword.api.llm import LLM
        from foreword.api.summary import summary
        from foreword_server.service import Service

        bundled = start.model is None
        llm = LLM(start.model, **start.options)
        service = Service(llm, start.settings, bundled=bundled)
        listener = bound(path)
    except (ForewordError, OSError, MemoryError) as error:
        known = isinstance(error, ForewordError)
        ready.send({"error": str(error) if known else words(error)})
        return

    def started() -> None:
        ready.send(_about(service) | {"summary": summary(llm, bundled=bundled)})
        ready.close()

    try:
        serve(service, listener, started, quiet=True)
    except ForewordError as error:
        sys.exit(str(error))


def _about(service: Any) -> dict[str, Any]:
    """Return what a router says of its replicas."""
    return {
        "name": service.name,
        "method": service.llm.method,
        "slots": service.llm.engine.scheduler.slots,
        "cache_tokens": service.llm.target.cache_tokens,
    }


def _end_with_router(folder: Path) -> None:
    """End this process as soon as the router has ended, which may have had no time to
    remove the folder of its sockets.
    """
    router = multiprocessing.parent_process()
    assert router is not None
    router.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
