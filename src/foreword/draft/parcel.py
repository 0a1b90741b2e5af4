"""What another engine is given of a drafter: its files, and how that engine is told to use them.

Knows the engines' names and options; knows nothing about what is in the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest
from foreword.model.parts import HFConfig

VLLM, SGLANG, SPECULATORS = ENGINES = ("vllm", "sglang", "speculators")
"""Who can be served. The last is the library whose folders `vllm serve FOLDER` reads without being told anything."""
FOLDER, TARGET = "{folder}", "{target}"
"""What stands for places that are known later."""
VERSION = "0.9.0"
"""Of speculators, whose layout is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A drafter for another engine."""

    write: Callable[[Path], None]
    """Fill a folder."""
    names: frozenset[str]
    """Every tensor that the engine looks for, and no other: what it does not know it passes over in silence."""
    start: tuple[str, ...]
    """The words that start the engine with it; FOLDER and TARGET in them stand for where these lie."""


def vllm(method: str, guesses: int) -> tuple[str, ...]:
    """What has vLLM use a folder."""
    told = json.dumps({"method": method, "model": FOLDER, "num_speculative_tokens": guesses})
    return "vllm", "serve", TARGET, "--speculative-config", told


def sglang(algorithm: str) -> tuple[str, ...]:
    """What has SGLang use a folder; how many guesses it makes it chooses itself."""
    begin = ("python", "-m", "sglang.launch_server", "--model-path", TARGET, "--speculative-algorithm", algorithm)
    return *begin, "--speculative-draft-model-path", FOLDER


def proposals(algorithm: str, guesses: int, target: HFConfig) -> dict[str, Any]:
    """`speculators_config`: what is to be done with a folder, and which target it is for."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": guesses,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    verifier = {"name_or_path": target.name_or_path, "architectures": list(target.architectures or ())}
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": verifier,
    }


def unserved(what: str, engine: str, others: tuple[str, ...] = ()) -> InvalidRequest:
    """The refusal where an engine cannot use a drafter."""
    instead = f"; {' and '.join(others)} can" if others else ""
    return InvalidRequest(f"{engine} cannot serve {what}{instead}")
