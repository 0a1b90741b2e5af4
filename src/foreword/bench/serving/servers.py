"""Provides servers as processes of their own: the command of each, a free port, readiness, and the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import IO

import torch

from foreword.bench.peers.convert import Source
from foreword.bench.peers.llamacpp import file as gguf
from foreword.errors import ForewordError, InvalidRequest

OURS, PLAIN, TRANSFORMERS, LLAMACPP = "foreword", "foreword, none", "transformers", "llamacpp"
NEEDS = {
    TRANSFORMERS: (("fastapi", "uvicorn", "openai", "accelerate"), "pip install 'transformers[serving]'"),
    LLAMACPP: (("gguf", "llama_cpp", "starlette_context"), "pip install gguf 'llama-cpp-python[server]'"),
}
"""Peer -> modules that its server needs, and how to install them."""
HOST = "127.0.0.1"
READY_SECONDS, POLL_SECONDS = 600.0, 0.1
"""Seconds. Longest start of a server, a large model included, and time between two looks at its port."""
END_SECONDS = 20.0
"""Seconds for a server to end after SIGTERM, before it is killed."""
TAIL = 600
"""Characters of a failed server's log in the error."""


class ServerFailed(ForewordError):
    """A server that ended before it was ready, or took too long."""


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
    source: Callable[[], Source]
    """Returns the target to convert to a peer's format."""
    note: Callable[[str], None]
    """Gets a line before a slow step."""
    trusted: bool = False


def command(name: str, files: Served, port: int) -> list[str]:
    """Return the command of a server. Raises InvalidRequest if what it needs is not installed."""
    modules, install = NEEDS.get(name, ((), ""))
    if missing := [module for module in modules if find_spec(module) is None]:
        raise InvalidRequest(f"cannot serve with {name} without {', '.join(missing)}. Run: {install}")
    if name == TRANSFORMERS:
        found = [sys.executable, "-m", "transformers.cli.transformers", "serve", files.folder, "--continuous-batching"]
        found += ["--host", HOST, "--port", str(port), "--device", "cpu", "--dtype", files.dtype]
        return found + ["--trust-remote-code"] * files.trusted
    if name == LLAMACPP:
        threads = str(torch.get_num_threads())
        found = [
            sys.executable,
            "-m",
            "llama_cpp.server",
            "--model",
            str(gguf(files.source(), files.note)),
            "--n_ctx",
            "4096",
        ]
        return [*found, "--host", HOST, "--port", str(port), "--n_threads", threads, "--n_threads_batch", threads]
    found = [sys.executable, "-m", "foreword", "serve", *([files.target] if files.target else [])]
    found += ["--host", HOST, "--port", str(port), "--slots", str(files.slots), "--dtype", files.dtype, "--quiet"]
    found += ["--trust-remote-code"] * files.trusted
    if name == PLAIN:
        return [*found, "--method", "none"]
    return found + (["--draft", files.draft] if files.draft else [])


@contextmanager
def running(line: List[str], port: int, environment: dict[str, str]) -> Iterator[None]:
    """Run a server until the body ends, which starts when its port answers.

    Raises ServerFailed, with the end of its log, if it never does.
    """
    with TemporaryFile() as log:
        process = subprocess.Popen(
            line, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
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


def _wait(process: subprocess.Popen[bytes], line: List[str], port: int, log: IO[bytes]) -> None:
    ends = monotonic() + READY_SECONDS
    while True:
        if process.poll() is not None or monotonic() > ends:
            log.seek(0)
            said = log.read().decode(errors="replace")[-TAIL:].strip()
            raise ServerFailed(f"cannot start {' '.join(line[:6])}: it ended or never listened. It wrote: {said}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        sleep(POLL_SECONDS)
