"""Servers under load as separate processes: command, free port, readiness, shutdown."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import IO

from foreword.errors import ForewordError, InvalidRequest
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.serving import llamacpp

OURS = "foreword"
PLAIN = "foreword, none"
TRANSFORMERS = "transformers"
NEEDS = ("fastapi", "uvicorn", "openai", "accelerate")
"""Modules that transformers' server needs."""
HOST = "127.0.0.1"
CACHE_SHARE = "0.25"
"""Share of the free memory that keys and values of transformers' server may take, as in
ours. Its default fills a machine that several servers share."""
READY_SECONDS, POLL_SECONDS = 600.0, 0.1
"""Seconds: longest start of a server, and time between looks at its health."""
LOADING = 503
"""Status of a server that answers already and still loads its model."""
END_SECONDS = 20.0
"""Seconds for a server to end after SIGTERM, before it is killed."""
TAIL = 600
"""Characters of a failed server's log in the error."""


@dataclass(frozen=True, slots=True)
class Served:
    """The files that the servers read."""

    target: str | None
    """Folder or hub id; None = the bundled target."""
    draft: str | None
    folder: str
    """Folder or hub id of the target, the bundled one too."""
    dtype: str
    slots: int
    pair: Pair
    """The same models, to convert to a peer's format."""
    trusted: bool = False
    weights: str | None = None
    """Form of the target's linear weights in our servers; None = as they are."""
    device: str = "cpu"
    """Where our servers and transformers' run."""


def command(name: str, files: Served, port: int) -> list[str]:
    """Return a server's command. Raises InvalidRequest if it is not installed."""
    if name == TRANSFORMERS:
        return _transformers(name, files, port)
    if name in llamacpp.NAMES:
        return [*llamacpp.command(name, files.pair, files.slots), *_address(port)]
    line = _foreword(files, port)
    if name == PLAIN:
        return [*line, "--method", "none"]
    return [*line, *_option("--draft", files.draft)]


def _transformers(name: str, files: Served, port: int) -> list[str]:
    if missing := [module for module in NEEDS if find_spec(module) is None]:
        raise InvalidRequest(
            f"cannot serve with {name} without {', '.join(missing)}. Run: pip "
            "install 'transformers[serving]'"
        )
    return [
        *(sys.executable, "-m", "transformers.cli.transformers"),
        *("serve", files.folder, "--continuous-batching"),
        *_address(port),
        *_placed(files),
        *("--cb-max-memory-percent", CACHE_SHARE),
        *_trust(files),
    ]


def _foreword(files: Served, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "foreword", "serve"),
        *([files.target] if files.target else []),
        *_address(port),
        *("--slots", str(files.slots)),
        *_placed(files),
        "--quiet",
        *_trust(files),
        *_option("--weights", files.weights),
    ]


def _address(port: int) -> list[str]:
    return ["--host", HOST, "--port", str(port)]


def _placed(files: Served) -> list[str]:
    return ["--device", files.device, "--dtype", files.dtype]


def _trust(files: Served) -> list[str]:
    return ["--trust-remote-code"] if files.trusted else []


def _option(name: str, value: str | None) -> list[str]:
    """Return an option of a command, nothing without a value."""
    return [name, value] if value else []


@contextmanager
def running(
    line: Sequence[str], port: int, environment: dict[str, str]
) -> Iterator[None]:
    """Run a server until the body ends, which starts when the server is ready.

    Raises ForewordError, with the end of its log, if it never does.
    """
    with TemporaryFile() as log:
        process = subprocess.Popen(
            line,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(process, line, port, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return taken.getsockname()[1]


def _wait(
    process: subprocess.Popen[bytes], line: Sequence[str], port: int, log: IO[bytes]
) -> None:
    ends = monotonic() + READY_SECONDS
    while True:
        if process.poll() is not None or monotonic() > ends:
            log.seek(0)
            said = log.read().decode(errors="replace")[-TAIL:].strip()
            raise ForewordError(
                f"cannot start {' '.join(line[:6])}: it ended or was never ready. It "
                f"wrote: {said}"
            )
        if _ready(port):
            return
        sleep(POLL_SECONDS)


def _ready(port: int) -> bool:
    """Return whether the server answers and its model is loaded; a server without
    /health is ready when it answers.
    """
    probe = HTTPConnection(HOST, port, timeout=READY_SECONDS)
    try:
        probe.request("GET", "/health")
        return probe.getresponse().status != LOADING
    except (OSError, HTTPException):
        return False
    finally:
        probe.close()
