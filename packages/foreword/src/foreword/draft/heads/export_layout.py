"""Export of a drafter to another engine: files, and the command that starts it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest
from foreword.model.head_layers import HFConfig

VLLM, SGLANG, SPECULATORS = ENGINES = ("vllm", "sglang", "speculators")
"""Engines to export for; vLLM reads folders of speculators without options."""
FOLDER, TARGET = "{folder}", "{target}"
"""Placeholders for paths that are filled in later."""
VERSION = "0.9.0"
"""Version of speculators whose layout is written."""
LAYER_TENSORS = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
"""Tensors of a layer that every engine requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportLayout:
    """Files and start command of a drafter for another engine."""

    write: Callable[[Path], None]
    """Writes the files into a folder."""
    names: frozenset[str]
    """Exactly the tensors that the engine reads; it silently ignores others."""
    start: tuple[str, ...]
    """Command that starts the engine, with the placeholders FOLDER and TARGET."""


def vllm(method: str, draft_tokens: int, **settings: Any) -> tuple[str, ...]:
    """Return the command that serves a folder with vLLM; `settings` go into its
    speculative config.
    """
    config = {"method": method, "model": FOLDER, "num_speculative_tokens": draft_tokens}
    config = json.dumps({**config, **settings})
    return "vllm", "serve", TARGET, "--speculative-config", config


def sglang(algorithm: str) -> tuple[str, ...]:
    """Return the command that serves a folder with SGLang, which chooses the number of
    draft tokens itself.
    """
    begin = (
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        TARGET,
        "--speculative-algorithm",
        algorithm,
    )
    return *begin, "--speculative-draft-model-path", FOLDER


def command(engine: str, method: str, draft_tokens: int) -> tuple[str, ...]:
    """Return the command that serves a head with an engine."""
    commands = {
        VLLM: vllm(method, draft_tokens),
        SGLANG: sglang(method.upper()),
        SPECULATORS: ("vllm", "serve", FOLDER),
    }
    return commands[engine]


def proposals(algorithm: str, draft_tokens: int, target: HFConfig) -> dict[str, Any]:
    """Return `speculators_config`: the proposal method, and the target of the head."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": draft_tokens,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    verifier = {
        "name_or_path": target.name_or_path,
        "architectures": list(target.architectures or ()),
    }
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": verifier,
    }


def unsupported_engine(
    what: str, engine: str, others: tuple[str, ...] = ()
) -> InvalidRequest:
    """Return the error for an engine that cannot use a drafter; `others` can."""
    fix = f"Choose {' or '.join(others)}" if others else "Choose another engine"
    return InvalidRequest(f"cannot export {what}: {engine} does not support it. {fix}")
