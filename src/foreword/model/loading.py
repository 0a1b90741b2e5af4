"""Models as transformers makes them from a checkpoint, or refused with the reason.

Knows the steps and their order; what may be wrong is in hub.py (files), config.py and intact.py (tensors).
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from threading import Lock

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from foreword.errors import ModelError, words
from foreword.model import hub
from foreword.model.config import CONFIG, read_json, unloadable
from foreword.model.intact import INDEX, check_finite, check_index, check_loaded, weights
from foreword.model.names import loader

GENERATION = "generation_config.json"
_LOADING = Lock()
"""transformers switches the whole process to weightless tensors while it builds a model: one thread at a time."""


def load_weights(
    source: str | Path, config: PreTrainedConfig, dtype: torch.dtype | str, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """The model of a checkpoint, on the CPU. Raises ModelError where a weight is missing, odd or no number."""
    try:
        check_index(source, read_json(source, INDEX))
        with _LOADING:
            model, info = loader(config).from_pretrained(
                source,
                config=config,
                dtype=dtype,
                generation_config=_generation(source, config),
                trust_remote_code=trust_remote_code,
                local_files_only=hub.local_only(source),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
        check_loaded(str(source), model, info)
        check_finite(str(source), weights(model))
    except ModelError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(f"{source} does not fit on cpu: {words(error)}. Try a smaller dtype") from error
    except pickle.UnpicklingError as error:
        raise pickled(source, error) from error
    except Exception as error:
        raise unloadable(source, error, read_json(source, CONFIG) or {}) from error
    return model


def pickled(source: str | Path, error: BaseException) -> ModelError:
    """What is raised where torch refuses to read a pickle as tensors alone."""
    del error  # it tells how to run the code all the same
    return ModelError(
        f"cannot load the weights of {str(source)!r}: its pickled file (.bin) is damaged or holds more than tensors, "
        "which could run code, so it was not read. Give the same weights as safetensors"
    )


def _generation(source: str | Path, config: PreTrainedConfig) -> GenerationConfig | None:
    """None = as transformers finds it. Settings that cannot be read only say where texts end: not worth an error."""
    try:
        if read_json(source, GENERATION) is None:
            return None
        return GenerationConfig.from_pretrained(source, local_files_only=hub.local_only(source))
    except Exception as error:  # noqa: BLE001 - whatever transformers trips over in the file
        warnings.warn(f"{GENERATION} of {source} is ignored, it cannot be read: {words(error)}", stacklevel=5)
        return GenerationConfig.from_model_config(config)
