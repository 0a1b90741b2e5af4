"""Default sampling: values given to the LLM, then the advice of the model's owner."""

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.loading.load import advised_sampling
from foreword.types import SamplingParams

AUTO, NONE = "auto", "none"
"""The owner's sampling, and that of SamplingParams."""
GenerationConfig = str | Mapping[str, Any]
"""AUTO, NONE, or values of SAMPLED; the owner advises the others."""
SAMPLED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Sampling parameters that an LLM may have defaults for."""


def given(config: GenerationConfig) -> dict[str, Any]:
    """Return the values that a `generation_config` holds.

    Raises InvalidRequest for another word or parameter, or a value out of range.
    """
    if config in (AUTO, NONE):
        return {}
    if not isinstance(config, Mapping) or not set(config) <= set(SAMPLED):
        raise InvalidRequest(
            f"'generation_config' must be {AUTO!r}, {NONE!r} or a dict of "
            f"{', '.join(SAMPLED)}, got {config!r}"
        )
    SamplingParams(**config)
    return dict(config)


def advised(hf: PreTrainedModel, name: str, config: GenerationConfig) -> dict[str, Any]:
    """Return the values that a model's owner advises for parameters that a
    `generation_config` leaves out.

    A value out of range only causes a warning, with the name of the model.
    """
    held = {} if config == NONE else advised_sampling(hf)
    usable = dict[str, Any]()
    for parameter in [one for one in held if one not in given(config)]:
        try:
            params = SamplingParams(**{parameter: held[parameter]})
        except InvalidRequest as error:
            warnings.warn(
                f"cannot use the default sampling of {name}: {error}. It is ignored",
                stacklevel=3,
            )
        else:
            usable[parameter] = getattr(params, parameter)
    return usable
