"""Reads config.json; one table of checks is applied before a model is built."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from foreword.errors import ModelError, named, words
from foreword.model.loading import hub
from foreword.registry import HEAD_METHODS, WEIGHT_FORMATS

CONFIG = hub.CONFIG
SETTINGS_FILE = "hf_quant_config.json"
"""File with the settings of a quantized checkpoint; older ones of ModelOpt have none in
their config.
"""
SPEECH = "whisper"
"""Kind of the encoder-decoders of sound that are supported: features of a fixed length,
and rules of their own.
"""
QUANTIZATION = "quantization_config"
"""Entry of a config, or of its text config."""
REMOTE = "auto_map"
"""Entry of a config, or a tokenizer's config, that names classes in its own folder."""


LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
)
"""Entries of a config that say how many layers there are."""
MOST_LAYERS = 100_000
"""Layers. A config lists each kind unread; no model has a hundredth of it."""


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _counts(value: Any) -> bool:
    """Return whether a value is a count, or a list of one per layer, zeros allowed."""
    if not isinstance(value, list):
        return _count(value)
    return all(type(one) is int and one >= 0 for one in value)


def _few(value: Any) -> bool:
    return type(value) is not int or value <= MOST_LAYERS


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _factors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_positive, value))


def _dtype(value: Any) -> bool:
    return value == "auto" or (
        isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype)
    )


Check = tuple[tuple[str, ...], Callable[[Any], bool], str]
"""Names, the check of their values, and the check in words."""
CHECKS: tuple[Check, ...] = (
    (
        ("vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer"),
        _count,
        "a whole number above 0",
    ),
    (LAYERS, _few, f"at most {MOST_LAYERS}"),
    (("max_position_embeddings", "n_positions"), _count, "a whole number above 0"),
    (
        (
            "num_attention_heads",
            "n_head",
            "num_key_value_heads",
            "intermediate_size",
            "n_inner",
            "head_dim",
        ),
        _counts,
        "a whole number above 0",
    ),
    (("dtype", "torch_dtype"), _dtype, "the name of one of torch's dtypes"),
    (
        ("rope_parameters", "rope_scaling"),
        lambda value: isinstance(value, dict),
        "a table of names and numbers",
    ),
)
ROPE: tuple[Check, ...] = (
    (("rope_type", "type"), lambda value: isinstance(value, str), "a name"),
    (
        (
            "factor",
            "rope_theta",
            "original_max_position_embeddings",
            "attention_factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "partial_rotary_factor",
        ),
        _positive,
        "a finite number above 0",
    ),
    (("short_factor", "long_factor"), _factors, "a list of finite numbers above 0"),
)
"""Checks of values that are present; null counts as absent."""


def read_config(
    source: str | Path, *, trust_remote_code: bool = False, seq2seq: bool = False
) -> PreTrainedConfig:
    """Return the config of a checkpoint; of an encoder-decoder, only with `seq2seq`.

    Raises ModelError where there is none, or a value is invalid.
    """
    path = hub.gguf(source)
    if hub.lost(source):
        raise ModelError(
            f"cannot load a model from {str(source)!r}: no such folder exists. Give "
            f"one that holds {CONFIG}"
        )
    values = read_json(source, CONFIG) or {}
    try:
        _check(values)
        if path is not None:
            from foreword.model.quantized.gguf_config import gguf_config
            from foreword.model.quantized.gguf_file import GgufFile

            config = gguf_config(GgufFile.open(source, path))
        else:
            config = AutoConfig.from_pretrained(
                trust_remote_code=trust_remote_code, **hub.location(source)
            )
            config = _quantized(config, source)
        _check_lengths(config.get_text_config())
    except _Invalid as invalid:
        raise ModelError(
            f"cannot load a model from {str(source)!r}: {invalid}. Correct {CONFIG}, "
            "or use another model"
        ) from None
    except Exception as error:
        raise unloadable(source, error, values) from error
    if getattr(config, "is_encoder_decoder", False):
        if not seq2seq:
            raise ModelError(
                f"cannot use {source} here: it is an encoder-decoder. Use a "
                "decoder-only model"
            )
        if (
            type(config) not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
            and config.model_type != SPEECH
        ):
            raise ModelError(
                f"cannot run {source}: it is an encoder-decoder of the kind "
                f"{config.model_type}, which transformers loads with no "
                f"AutoModelForSeq2SeqLM. Use one that reads text, or {SPEECH}"
            )
    return config


def misplaced_head(source: str | Path, config: Mapping[str, Any]) -> ModelError | None:
    """Return the error for a trained head in place of a model, else None."""
    heads = [HEAD_METHODS[one] for one in hub.kinds_of(config) if one in HEAD_METHODS]
    return (
        ModelError(
            f"cannot load a model from {str(source)!r}: it is a trained head of the "
            f"method {heads[0]}. Give its target as the model, and this as draft"
        )
        if heads
        else None
    )


def _quantized(config: PreTrainedConfig, source: str | Path) -> PreTrainedConfig:
    """Return a config with the settings of a file of their own, where it has none."""
    if not any(
        hasattr(part, QUANTIZATION) for part in (config, config.get_text_config())
    ):
        content = quantization_file(source)
        if content is not None:
            setattr(config, QUANTIZATION, content)
    return config


def quantization_file(source: str | Path) -> dict[str, Any] | None:
    """Return the settings of a quantized checkpoint that stand in a file of their own;
    None where there is none.
    """
    content = read_json(source, SETTINGS_FILE)
    if content is None:
        return None
    # seldom needed
    from foreword.model.quantized.formats.modelopt import settings

    return settings(content)


def quantization(config: PreTrainedConfig) -> Mapping[str, Any] | None:
    """Return the settings of a quantized checkpoint; None where it is not one, or
    transformers is to load it.

    Raises ModelError for a method that transformers does not know either: it would load
    the model without its weights.
    """
    settings = getattr(config, QUANTIZATION, None) or getattr(
        config.get_text_config(), QUANTIZATION, None
    )
    if not isinstance(settings, dict):
        return None
    method = settings.get("quant_method")
    if method is not None and method not in {
        *WEIGHT_FORMATS,
        *AUTO_QUANTIZATION_CONFIG_MAPPING,
    }:
        raise unsupported(str(config.name_or_path), f"quant_method={method!r}")
    return settings if method in WEIGHT_FORMATS else None


def in_few_bits(source: str | Path, config: PreTrainedConfig) -> bool:
    """Return whether a checkpoint holds quantized matrices that Foreword reads."""
    if (path := hub.gguf(source)) is None:
        return quantization(config) is not None
    from foreword.model.quantized.gguf_file import GgufFile

    file = GgufFile.open(source, path)
    return any(map(file.in_few_bits, file.tensors))


def unsupported(source: str, setting: str) -> ModelError:
    """Return the error for a setting of a quantized checkpoint."""
    return ModelError(
        f"cannot load the weights of {source!r}: {setting} of its {QUANTIZATION} is "
        "not supported. Use a checkpoint in a form of "
        "docs/targets/quantized/checkpoints.md"
    )


def unloadable(
    source: str | Path, error: BaseException, config: Mapping[str, Any]
) -> ModelError:
    """Return the error for a checkpoint that transformers cannot load, whatever it
    raised.

    `config` holds the entries of config.json, or of the tokenizer's config.
    """
    if isinstance(error, ModelError):
        return error
    if refused := untrusted(source, error, config) or misplaced_head(source, config):
        return refused
    lines = str(error).strip().splitlines()
    # Validation errors: the first line says that a check failed, the last which.
    why = (
        words(ValueError(lines[-1]))
        if "alidation error" in str(error) and lines
        else _message(error)
    )
    return ModelError(
        f"cannot load a model from {str(source)!r}: {why.strip()}. Give a folder that "
        f"holds {CONFIG} and safetensors weights, or the id of a model on the hub"
    )


def _message(error: BaseException) -> str:
    return named(error) if isinstance(error, KeyError) else words(error)


def untrusted(
    source: str | Path, error: BaseException, config: Mapping[str, Any]
) -> ModelError | None:
    """Return the error for a folder whose code transformers refused to run; None where
    that was not its reason.
    """
    if REMOTE not in config or "trust_remote_code" not in str(error):
        return None
    return ModelError(
        f"cannot load {str(source)!r}: it needs Python code from its own folder "
        f"({REMOTE}), which is not trusted. Read that code, then give "
        "trust_remote_code=True"
    )


def read_json(source: str | Path, name: str) -> dict[str, Any] | None:
    """Read a JSON object; None without a file. Raises ModelError for other JSON."""
    try:
        content = json.loads(hub.file(source, name).read_text(encoding="utf-8"))
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"cannot load {str(source)!r}: {name} is not JSON: {words(error)}. Copy "
            "the file again"
        ) from error
    if not isinstance(content, dict):
        raise ModelError(
            f"cannot load {str(source)!r}: {name} holds no JSON object. Copy the file "
            "again"
        )
    return content


class _Invalid(Exception):
    """An invalid value, with what it must be."""


def _check(config: Mapping[str, Any]) -> None:
    """Raise _Invalid for the first invalid value in a config or in its text config."""
    for table in (config, config.get("text_config")):
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
    for names, valid, requirement in checks:
        for name in names:
            value = table.get(name)
            if value is not None and not valid(value):
                raise _Invalid(f"{name} must be {requirement}, got {json.dumps(value)}")


def _check_lengths(config: Any) -> None:
    """Raise _Invalid where longrope lacks one factor per rotated pair of dimensions."""
    rope = getattr(config, "rope_parameters", None) or {}
    dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    if dim is None and _count(getattr(config, "num_attention_heads", None)):
        dim = config.hidden_size // config.num_attention_heads
    for name in ("short_factor", "long_factor"):
        factors = rope.get(name)
        if isinstance(factors, list) and isinstance(dim, int):
            pairs = int(dim * rope.get("partial_rotary_factor", 1.0)) // 2
            if len(factors) != pairs:
                raise _Invalid(
                    f"{name} must be a list of {pairs} numbers, one for each rotated "
                    f"pair, got {len(factors)}"
                )
