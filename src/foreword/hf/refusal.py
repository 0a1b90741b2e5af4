"""What transformers' `generate` offers and Foreword cannot serve exactly, and why. Knows the names of options only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation import logits_process as hf

Setting = Callable[[str], Any]
"""The value of a generation option by its name; None where it is not set."""

_ANOTHER_SEARCH = "it is another way to search, with no next token to agree on"
_OTHER_DRAFT = "it is transformers' own way to speculate"
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("num_beams", (1,), _ANOTHER_SEARCH),
    ("num_beam_groups", (1,), _ANOTHER_SEARCH),
    ("constraints", (), _ANOTHER_SEARCH),
    ("force_words_ids", (), _ANOTHER_SEARCH),
    ("penalty_alpha", (0,), _ANOTHER_SEARCH),
    ("dola_layers", (), "it reads the logits of inner layers"),
    ("guidance_scale", (1,), "it runs the model a second time for every token"),
    ("watermarking_config", (), "a watermark depends on how the text was drawn"),
    ("use_mtp", (False,), _OTHER_DRAFT),
    ("assistant_early_exit", (), _OTHER_DRAFT),
    ("speculation_type", (), _OTHER_DRAFT),
    ("assistant_ensemble_weight", (0,), "it changes what the model says"),
    ("output_attentions", (False,), "attention weights are not kept"),
    ("output_hidden_states", (False,), "hidden states are not kept"),
)
"""(option, values that do nothing besides None, why any other is refused)"""

_SERVED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_CACHES = ("past_key_values", "cache_params")
_STATEFUL = (
    hf.ClassifierFreeGuidanceLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    hf.WatermarkLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
)


def refused_option(setting: Setting) -> str | None:
    """The first option that is set and cannot be served, with the reason; None where all can."""
    for name, neutral, why in _REFUSED:
        value = setting(name)
        if value is not None and value not in neutral:
            return f"{name}={value!r} cannot be served: {why}. Leave it out, or call generate without Foreword"
    if setting("cache_implementation") == "quantized":
        return "cache_implementation='quantized' cannot be served: it rounds what the model remembers. Leave it out"
    return None


def refused_input(model: PreTrainedModel, inputs: Mapping[str, Any]) -> str | None:
    """The first model input beside tokens and their mask, with the reason; None where there is none."""
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{type(model).__name__} is an encoder-decoder; Foreword drives decoder-only models"
    for name, value in inputs.items():
        if name in _CACHES:
            # transformers brings an empty one to every call, which nobody misses.
            filled = any(getattr(layer, "is_initialized", False) for layer in getattr(value, "layers", ()))
            if filled or getattr(value, "_is_user_defined", False):
                return f"{name} cannot be served: Foreword reads the whole prompt into a memory of its own"
        elif value is not None and name not in _SERVED:
            return f"{name} cannot be served: Foreword reads token ids and attention_mask alone"
    return None


def refused_processor(processors: Iterable[LogitsProcessor | Callable]) -> str | None:
    """The first processor whose answer depends on more than the tokens before a position; None where none does."""
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            name = type(processor).__name__
            return f"{name} cannot be served: its answer depends on more than the tokens before a position"
    return None
