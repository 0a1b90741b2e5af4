"""Checks, before any work starts, whether a call of transformers' `generate` can be
served, and the reason if not.
"""

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.generation import logits_process as hf
from transformers.utils.generic import TransformersKwargs

from foreword.errors import InvalidRequest
from foreword.hf.inputs import VISION, Setting, refused_input
from foreword.hf.pictures import picture_inputs, refused_pictures
from foreword.hf.refusal import LEAVE_OUT, Refusal
from foreword.model import is_seq2seq
from foreword.model.seq2seq import is_speech

CLOSE = 0.8
"""difflib ratio from which a name counts as a typo of another; token_type_ids and
eos_token_id have 0.7.
"""

_BEAMS = "beam search is not supported"
_OTHER_DRAFT = "it uses transformers' own drafting"
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("num_beams", (1,), _BEAMS),
    ("num_beam_groups", (1,), _BEAMS),
    ("constraints", (), _BEAMS),
    ("force_words_ids", (), _BEAMS),
    ("penalty_alpha", (0,), "contrastive search is not supported"),
    ("dola_layers", (), "it reads the logits of inner layers"),
    ("guidance_scale", (1,), "it runs the model a second time for every token"),
    ("negative_prompt_ids", (), "it runs the model a second time for every token"),
    ("watermarking_config", (), "a watermark depends on how the text was sampled"),
    ("speculation_type", (), _OTHER_DRAFT),
    ("assistant_ensemble_weight", (0,), "it changes the distribution of the target"),
    ("output_attentions", (False,), "attention weights are not recorded"),
    ("output_hidden_states", (False,), "hidden states are not recorded"),
    ("token_healing", (False,), "it rewrites the end of the prompt"),
    ("synced_gpus", (False,), "every process must run the model equally often"),
)
"""(option, neutral values besides None, reason to refuse any other)"""
_CACHE_KINDS = {
    "quantized": "it rounds keys and values",
    "paged": "continuous batching is not supported",
}

_STATEFUL = (
    hf.ClassifierFreeGuidanceLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    hf.WatermarkLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
)


PURE = "is_pure"
"""Attribute of a processor or criterion whose answer for a row depends on that row's
tokens and scores alone.
"""

T = TypeVar("T")


def pure(thing: T) -> T:
    """Mark a processor or criterion, or its class, as a function of a row's tokens and
    scores, and return it.

    Under `foreword.enable()`, calls with it are drafted: a draft token that is rejected
    must leave no trace in it. The attribute `is_pure = True` says the same. Raises
    InvalidRequest for an object that takes no attributes.

    Examples:
        >>> @foreword.pure
        ... def no_digits(input_ids, scores): ...
    """
    try:
        setattr(thing, PURE, True)
    except (AttributeError, TypeError) as error:
        raise InvalidRequest(
            f"cannot mark {called(thing)} as pure: it takes no attributes. Put it into "
            "a function or a class"
        ) from error
    return thing


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of one `generate` call that decide whether it can be served."""

    model: PreTrainedModel
    setting: Setting
    inputs: Mapping[str, Any]
    """Inputs of the model, tokens and mask included."""
    processors: Sequence[Any] = ()
    criteria: Sequence[Any] = ()
    ends: bool = False
    """Whether a row that has ended is padded until all have."""
    stops: bool = False
    """Whether something else than end-of-text and length may end a row."""
    streamer: Any = None
    copies: int = 1
    """Rows per prompt."""
    explicit: bool = False
    """Whether the caller named foreword and so guarantees that processors and criteria
    are pure functions.
    """

    def refusal(self) -> Refusal | None:
        """Return the first reason not to serve this call; None if there is none."""
        pictures = picture_inputs(self.model, self.inputs)
        refusal = (
            _model(self.model)
            or _option(self.setting)
            or (
                refused_pictures(self.model, self.inputs, self._count)
                if pictures
                else None
            )
            or refused_input(
                self.inputs,
                self.setting,
                seq2seq=is_seq2seq(self.model.config),
                sound=is_speech(self.model),
                pictures=pictures,
            )
            or _processor(self.processors, self.explicit)
        )
        return refusal or self._rows()

    @property
    def _count(self) -> int:
        """Rows of the call."""
        prompts = self.inputs.get(self.model.main_input_name)
        return (1 if prompts is None else len(prompts)) * self.copies

    def _rows(self) -> Refusal | None:
        rows = self._count
        if rows == 1:
            return None
        if self.streamer is not None:
            return Refusal(
                "streamer",
                f"it takes one row, and there are {rows} rows",
                "Stream them one by one",
            )
        if self.stops and not self.ends:
            reason = (
                "without an end-of-text token, stopped rows continue until all have "
                "stopped"
            )
            return Refusal(
                "stopping_criteria", reason, "Set eos_token_id, or give one prompt"
            )
        custom = [criterion for criterion in self.criteria if not _is_known(criterion)]
        if custom and not self.explicit:
            return Refusal(
                f"stopping_criteria {called(custom[0])}",
                "it may depend on several rows (foreword.pure says otherwise)",
            )
        return None


def called(thing: object) -> str:
    """Return the name of a processor or a criterion."""
    return getattr(thing, "__name__", None) or type(thing).__name__


def _is_known(thing: object) -> bool:
    """Return whether a processor or criterion is transformers', or says it is pure."""
    return getattr(thing, PURE, False) is True or type(thing).__module__.startswith(
        "transformers."
    )


def _model(model: PreTrainedModel) -> Refusal | None:
    kind, seq2seq = type(model).__name__, is_seq2seq(model.config)
    if _attribute(type(model), "_sample") is not _attribute(GenerationMixin, "_sample"):
        return Refusal(kind, "it has its own decoding loop")
    if model.main_input_name != "input_ids" and not is_speech(model):
        return Refusal(kind, f"it reads {model.main_input_name}, not token ids alone")
    config = model.config.get_text_config()
    masked = (
        type(config) in MODEL_FOR_MASKED_LM_MAPPING
        and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    )
    if masked and not seq2seq and not getattr(config, "is_decoder", False):
        return Refusal(
            kind, "it is a masked language model with attention in both directions"
        )
    if model.training and any(_has_dropout(module) for module in model.modules()):
        return Refusal(
            kind, "it is in training mode with dropout", "Call model.eval() first"
        )
    return None


def _attribute(thing: object, name: str) -> Any:
    """Return an attribute that transformers' type hints hide."""
    return getattr(thing, name)


def _has_dropout(module: torch.nn.Module) -> bool:
    rates = [
        getattr(module, name, 0.0)
        for name in ("p", "attention_dropout", "dropout", "layerdrop")
    ]
    return module.training and any(
        isinstance(rate, float) and rate > 0 for rate in rates
    )


def _option(setting: Setting) -> Refusal | None:
    for name, neutral, reason in _REFUSED:
        value = setting(name)
        if value is not None and not isinstance(value, Tensor) and value in neutral:
            continue
        if value is not None:
            shown = (
                f"{name}={value!r}" if isinstance(value, str | int | float) else name
            )
            return Refusal(
                shown,
                reason,
                f"Set {name}={neutral[0]}, or call generate without foreword"
                if neutral
                else LEAVE_OUT,
            )
    kind = setting("cache_implementation")
    if kind in _CACHE_KINDS:
        return Refusal(f"cache_implementation={kind!r}", _CACHE_KINDS[kind])
    return None


def _processor(processors: Sequence[Any], explicit: bool) -> Refusal | None:
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            return Refusal(
                called(processor),
                "it depends on more than the tokens before a position",
            )
        if not explicit and not _is_known(processor):
            reason = (
                "it may depend on more than the tokens before a position "
                "(foreword.pure says otherwise)"
            )
            return Refusal(f"logits_processor {called(processor)}", reason)
    return None


def check_names(
    model: PreTrainedModel, names: Iterable[str], ours: Iterable[str]
) -> None:
    """Raise InvalidRequest for a likely typo of an argument of `generate` that
    transformers would refuse.
    """
    options = {
        *ours,
        *vars(GenerationConfig()),
        *vars(model.generation_config or GenerationConfig()),
    }
    options |= {
        *inspect.signature(_attribute(GenerationMixin, "generate")).parameters,
        "tokenizer",
        "assistant_tokenizer",
    }
    valid = options | {
        "trust_remote_code",
        "input_ids",
        *VISION,
        *TransformersKwargs.__optional_keys__,
    }
    for function in ("forward", "prepare_inputs_for_generation"):
        valid |= set(inspect.signature(_attribute(model, function)).parameters)
    if is_seq2seq(model.config):
        valid |= set(inspect.signature(model.get_encoder().forward).parameters) | {
            "decoder_input_ids"
        }
        valid |= {
            f"decoder_{name}"
            for name in inspect.signature(model.get_decoder().forward).parameters
        }
    for name in names:
        near = (
            difflib.get_close_matches(name, options, 1, CLOSE)
            if name not in valid
            else []
        )
        if near:
            raise InvalidRequest(
                f"cannot use argument {name!r}: it is unknown. Did you mean "
                f"{near[0]!r}?"
            )
