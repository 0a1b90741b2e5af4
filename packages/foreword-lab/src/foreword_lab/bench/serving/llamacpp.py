"""Command line of llama.cpp's server on our weights, alone or with our draft model."""

import shutil
import subprocess
from importlib.util import find_spec

import torch

from foreword.errors import InvalidRequest
from foreword_lab.bench.peers.llamacpp import ROOM, file
from foreword_lab.bench.peers.registry import Pair

ALONE, DRAFTING = NAMES = ("llamacpp", "llamacpp, draft model")
"""Names of the rows."""
PROGRAM = "llama-server"
SAMPLING = ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--repeat-penalty", "1")
"""Turns off the filters that llama.cpp has on by default, so that it samples from the
model's own distribution.
"""
UNCACHED = ("--no-cache-prompt", "--cache-ram", "0")
"""Reads every prompt: its caches have no tenants, so later loads would find the prompts
of earlier ones.
"""


def program() -> str:
    """Return llama-server's path. InvalidRequest if it or its writer is missing."""
    if find_spec("gguf") is None:
        raise InvalidRequest(
            "cannot serve with llama.cpp without gguf. Run: pip install "
            "'foreword[peers]'"
        )
    path = shutil.which(PROGRAM)
    if path is None:
        raise InvalidRequest(
            f"cannot serve with llama.cpp: no {PROGRAM} is on the PATH. Build it: "
            "docs/benchmarks/install-other-engines.md"
        )
    return path


def command(name: str, pair: Pair, slots: int) -> list[str]:
    """Return the command of one of NAMES, without its address; the models are converted
    if needed.

    `slots`: sequences that it decodes together, each with room for a whole context.
    """
    path = program()
    target = pair.target()
    threads = str(torch.get_num_threads())
    context = min(target.context, ROOM)
    line = [
        path,
        "--model",
        str(file(target, pair.note)),
        "--parallel",
        str(slots),
        "--cont-batching",
    ]
    line += [
        "--ctx-size",
        str(slots * context),
        "--threads",
        threads,
        "--threads-batch",
        threads,
    ]
    line += [*SAMPLING, *UNCACHED]
    if name == DRAFTING:
        line += [
            "--spec-type",
            "draft-simple",
            "--spec-draft-model",
            str(file(pair.draft(), pair.note)),
        ]
    return line


def version() -> str:
    """Return what llama-server says of its version; "unknown" if not installed."""
    path = shutil.which(PROGRAM)
    if path is None:
        return "unknown"
    said = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False
    )
    lines = [
        line
        for line in (said.stdout + said.stderr).splitlines()
        if line.startswith("version")
    ]
    return lines[0].removeprefix("version: ") if lines else "unknown"
