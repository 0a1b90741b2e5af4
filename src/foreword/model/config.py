"""config.json, read and checked: one table of what its numbers may be, before anything is made from them.

Knows names and ranges; knows nothing about weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from foreword.errors import ModelError, named, words
from foreword.model import hub

CONFIG = "config.json"
REMOTE = "auto_map"
"""Where a config, or a tokenizer's, names classes of its own folder."""


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _counts(value: Any) -> bool:
    """A count, or one for each layer, of which some may have none."""
    return _count(value) or (isinstance(value, list) and all(type(one) is int and one >= 0 for one in value))


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _factors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_positive, value))


def _dtype(value: Any) -> bool:
    return value == "auto" or (isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype))


Check = tuple[tuple[str, ...], Callable[[Any], bool], str]
"""Names, what their values must be, and the same in words."""
CHECKS: tuple[Check, ...] = (
    (("vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer"), _count, "a whole number above 0"),
    (("max_position_embeddings", "n_positions"), _count, "a whole number above 0"),
    (
        ("num_attention_heads", "n_head", "num_key_value_heads", "intermediate_size", "n_inner", "head_dim"),
        _counts,
        "a whole number above 0",
    ),
    (("dtype", "torch_dtype"), _dtype, "the name of one of torch's dtypes"),
    (("rope_parameters", "rope_scaling"), lambda value: isinstance(value, dict), "a table of names and numbers"),
)
ROPE: tuple[Check, ...] = (
    (("rope_type", "type"), lambda value: isinstance(value, str), "a name"),
    (
        (
            *("factor", "rope_theta", "original_max_position_embeddings", "attention_factor"),
            *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "partial_rotary_factor"),
        ),
        _positive,
        "a finite number above 0",
    ),
    (("short_factor", "long_factor"), _factors, "a list of finite numbers above 0"),
)
"""What values that are there must be; null leaves one out."""


def read_config(source: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The config of a checkpoint. Raises ModelError where there is none, or it says what cannot be."""
    if hub.lost(source):
        raise ModelError(
            f"cannot load a model from {str(source)!r}: there is no such folder. Give one that holds {CONFIG}"
        )
    said = _read(source)
    try:
        _check(said)
        config = AutoConfig.from_pretrained(
            source, trust_remote_code=trust_remote_code, local_files_only=hub.local_only(source)
        )
        _check_lengths(config.get_text_config())
    except _Wrong as wrong:
        raise ModelError(
            f"cannot load a model from {str(source)!r}: {wrong}. Mend {CONFIG}, or give another model"
        ) from None
    except Exception as error:
        raise unloadable(source, error, said) from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{source} is an encoder-decoder; Foreword drives decoder-only models")
    return config


def unloadable(source: str | Path, error: BaseException, said: Mapping[str, Any]) -> ModelError:
    """What is raised where transformers cannot make something of a checkpoint whose config, or tokenizer's, says this.

    It raises whatever a file makes it trip over.
    """
    if isinstance(error, ModelError):
        return error
    if refused := untrusted(source, error, said):
        return refused
    lines = str(error).strip().splitlines()
    # The first line of these says that a check failed, the second which.
    why = words(ValueError(lines[-1])) if "alidation error" in str(error) and lines else _said(error)
    return ModelError(
        f"cannot load a model from {str(source)!r}: {why.strip()}. Give a folder that holds {CONFIG} and "
        "safetensors weights, or the id of a model on the hub"
    )


def _said(error: BaseException) -> str:
    return named(error) if isinstance(error, KeyError) else words(error)


def untrusted(source: str | Path, error: BaseException, said: Mapping[str, Any]) -> ModelError | None:
    """What is raised where transformers refused to run the code of a folder; None where that was not its reason."""
    if REMOTE not in said or "trust_remote_code" not in str(error):
        return None
    return ModelError(
        f"cannot load {str(source)!r}: it needs Python code from its own folder ({REMOTE}), which does not run "
        "unasked. Read that code, then give trust_remote_code=True"
    )


def read_json(source: str | Path, name: str) -> dict[str, Any] | None:
    """A file that must be a JSON object; None where there is no such file. Raises ModelError for another."""
    try:
        found = json.loads(hub.file(source, name).read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"cannot load {str(source)!r}: {name} is not JSON: {words(error)}. Copy the file again"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"cannot load {str(source)!r}: {name} holds no JSON object. Copy the file again")
    return found


def _read(source: str | Path) -> dict[str, Any]:
    return read_json(source, CONFIG) or {}


class _Wrong(Exception):
    """A value that cannot be, and what it must be."""


def _check(said: Mapping[str, Any]) -> None:
    """Raises _Wrong for the first value that cannot be, in a config or in that of its text."""
    for table in (said, said.get("text_config")):
        if isinstance(table, dict):
            _check_values(table, CHECKS)
            for rope in _ropes(table):
                _check_values(rope, ROPE)


def _ropes(table: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("rope_parameters", "rope_scaling"):
        rope = table.get(name) or {}
        kinds = [kind for kind in rope.values() if isinstance(kind, dict)]
        yield from kinds or [rope]


def _check_values(table: Mapping[str, Any], checks: tuple[Check, ...]) -> None:
    for names, fine, wanted in checks:
        for name in names:
            value = table.get(name)
            if value is not None and not fine(value):
                raise _Wrong(f"{name} must be {wanted}, got {json.dumps(value)}")


def _check_lengths(config: Any) -> None:
    """Raises _Wrong for factors of longrope that are not one for each pair of numbers that turns."""
    rope = getattr(config, "rope_parameters", None) or {}
    dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    if dim is None and _count(getattr(config, "num_attention_heads", None)):
        dim = config.hidden_size // config.num_attention_heads
    for name in ("short_factor", "long_factor"):
        factors = rope.get(name)
        if isinstance(factors, list) and isinstance(dim, int):
            pairs = int(dim * rope.get("partial_rotary_factor", 1.0)) // 2
            if len(factors) != pairs:
                raise _Wrong(
                    f"{name} must be a list of {pairs} numbers, one for each pair that turns, got {len(factors)}"
                )
