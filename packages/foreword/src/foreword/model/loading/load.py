"""Loads a checkpoint with transformers, after all checks.

The checks are in hub.py (files), config.py and complete.py (tensors); quantized.py
reads quantized checkpoints.
"""

import pickle
import warnings
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from foreword.errors import ModelError, words
from foreword.model.architectures import is_seq2seq, loader
from foreword.model.loading import hub
from foreword.model.loading.complete import (
    INDEX,
    check_finite,
    check_index,
    check_loaded,
    matrices,
    weights,
)
from foreword.model.loading.config import CONFIG, quantization, read_json, unloadable
from foreword.model.loading.sizes import check_sizes, empty

if TYPE_CHECKING:
    from foreword.model.seq2seq import Seq2Seq

GENERATION = "generation_config.json"
GGUF = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Sampling parameter -> its field under `general.sampling` in a GGUF file."""
SAMPLING = (*GGUF, "typical_p")
"""Sampling parameters that generation settings may hold."""
NO_ADAPTER = {"adapter_kwargs": {"local_files_only": True}}
"""Argument for transformers, which asks the hub for an adapter if PEFT is there."""
_LOADING = Lock()
"""Held while transformers builds a model: it switches the whole process to tensors
without storage.
"""


def load_weights(
    source: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    *,
    trust_remote_code: bool = False,
    filled: bool = True,
    split: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """Load a checkpoint on the CPU. Raises ModelError where a weight is missing, of
    another shape or not finite.

    Unless `filled`, quantized weights are not read, and their parameters have no
    storage. `split`: how transformers deals the weights out to processes and their
    devices; all the processes call this.
    """
    try:
        check_index(source, read_json(source, INDEX))
        if hub.gguf(source) is None:
            check_sizes(
                source,
                config,
                partial(
                    empty_model, deepcopy(config), trust_remote_code=trust_remote_code
                ),
            )
        where: dict[str, Any] = {**hub.location(source), **NO_ADAPTER, **(split or {})}
        load, where = _loading(source, config, where, filled)
        with _LOADING:
            model, info = load(
                config=config,
                dtype=dtype,
                generation_config=_generation(source, config),
                trust_remote_code=trust_remote_code,
                **where,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_loaded refuses them by name
            )
        check_loaded(str(source), model, info)
        check_finite(str(source), weights(model), matrices(model))
    except ModelError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            f"cannot load {source}: it does not fit on cpu: {words(error)}. Try a "
            "smaller dtype"
        ) from error
    except pickle.UnpicklingError as error:
        raise pickled(source, error) from error
    except Exception as error:
        raise unloadable(source, error, read_json(source, CONFIG) or {}) from error
    return model


def _loading(
    source: str | Path, config: PreTrainedConfig, where: dict[str, Any], filled: bool
) -> tuple[Any, dict[str, Any]]:
    """Return the function that builds a checkpoint's model, and its own arguments."""
    is_gguf = hub.gguf(source) is not None
    if not (quantization(config) or is_gguf):
        return loader(config).from_pretrained, where
    from foreword.model.loading.quantized import load_dequantized, load_gguf

    if is_gguf:
        return load_gguf, {"source": source, "filled": filled}
    return load_dequantized, {**where, "filled": filled}


def parameter_count(
    config: PreTrainedConfig, *, trust_remote_code: bool = False
) -> int:
    """Return the number of a model's weights, tied ones once; nothing is loaded."""
    model = empty_model(config, trust_remote_code=trust_remote_code)
    return sum(weight.numel() for weight in model.parameters())


def empty_model(
    config: PreTrainedConfig, *, trust_remote_code: bool
) -> PreTrainedModel:
    """Return a model of this config without storage."""
    with _LOADING:
        return empty(config, trust_remote_code=trust_remote_code)


def pickled(source: str | Path, error: BaseException) -> ModelError:
    """Return the error for a pickle that torch refuses to read as tensors only."""
    del error  # its text tells how to run the code all the same
    return ModelError(
        f"cannot load the weights of {str(source)!r}: its pickled file (.bin) is "
        "damaged or holds more than tensors, which could run code, so it was not read. "
        "Give the same weights as safetensors"
    )


def _generation(
    source: str | Path, config: PreTrainedConfig
) -> GenerationConfig | None:
    """Read the generation settings; None = let transformers do it.

    Unreadable settings only cause a warning.
    """
    if (path := hub.gguf(source)) is not None:
        return _of_gguf(source, path, config)
    try:
        if read_json(source, GENERATION) is None:
            return None
        return GenerationConfig.from_pretrained(
            source, local_files_only=hub.local_only(source)
        )
    except Exception as error:  # noqa: BLE001 - whatever transformers raises on the file
        warnings.warn(
            f"cannot read {GENERATION} of {source}: {words(error)}. It is ignored",
            stacklevel=5,
        )
        return GenerationConfig.from_model_config(config)


def _of_gguf(
    source: str | Path, path: Path, config: PreTrainedConfig
) -> GenerationConfig | None:
    """Return the settings of a GGUF file; None if it advises no sampling."""
    from foreword.model.quantized.gguf_file import GgufFile

    file = GgufFile.open(source, path)
    fields = {name: file.field(f"general.sampling.{key}") for name, key in GGUF.items()}
    advised = {
        # 0.7 in 32 bits is 0.699999988: its shortest decimal is what was written
        name: float(str(np.float32(value))) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None
    }
    if not advised:
        return None
    settings = GenerationConfig.from_model_config(config)
    for name, value in {
        **advised,
        "do_sample": True,
        "_from_model_config": False,
    }.items():
        setattr(settings, name, value)
    return settings


def advised_sampling(hf: PreTrainedModel) -> dict[str, Any]:
    """Return the sampling parameters that the generation settings of a model hold.

    Settings made from a config hold none: old configs list defaults of transformers.
    Nor do those for greedy decoding (`do_sample` false).
    """
    settings = hf.generation_config
    if settings is None or settings._from_model_config or settings.do_sample is False:
        return {}
    held = {name: getattr(settings, name, None) for name in SAMPLING}
    return {name: value for name, value in held.items() if value is not None}


def eos_ids(hf: PreTrainedModel) -> tuple[frozenset[int], list[Any]]:
    """Return the end-of-text ids of the generation settings, or of the config, and the
    ids that are no tokens.
    """
    eos = (hf.generation_config or hf.config).eos_token_id
    ids = [] if eos is None else [eos]
    if isinstance(eos, list | tuple | set | frozenset):
        ids = list(eos)
    vocab = hf.config.get_text_config().vocab_size
    valid = [token for token in ids if type(token) is int and 0 <= token < vocab]
    return frozenset(valid), [token for token in ids if token not in valid]


def forced_tokens(hf: PreTrainedModel, name: str) -> "Seq2Seq | None":
    """Return the tokens that the settings of an encoder-decoder force; None of a model
    that is none.
    """
    if not is_seq2seq(hf.config):
        return None
    from foreword.model.seq2seq import Seq2Seq

    return Seq2Seq.of(hf, name)
