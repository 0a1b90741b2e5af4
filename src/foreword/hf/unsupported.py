"""Checks, before any work starts, whether a call of transformers' `generate` can be served, and the reason if not."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, Shaped
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

Setting = Callable[[str], Any]
"""Lookup of a generation option by its name; None if it is not set."""
LEAVE_OUT = "Leave it out, or call generate without foreword"
CLOSE = 0.8
"""difflib ratio from which a name counts as a typo of another; token_type_ids and eos_token_id have 0.7."""

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
    ("use_mtp", (False,), _OTHER_DRAFT),
    ("assistant_early_exit", (), _OTHER_DRAFT),
    ("speculation_type", (), _OTHER_DRAFT),
    ("assistant_ensemble_weight", (0,), "it changes the distribution of the target"),
    ("output_attentions", (False,), "attention weights are not recorded"),
    ("output_hidden_states", (False,), "hidden states are not recorded"),
    ("token_healing", (False,), "it rewrites the end of the prompt"),
    ("synced_gpus", (False,), "every process must run the model equally often"),
)
"""(option, neutral values besides None, reason to refuse any other)"""
_CACHE_KINDS = {"quantized": "it rounds keys and values", "paged": "continuous batching is not supported"}

_SERVED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_CACHES = ("past_key_values", "cache_params")
_VISION_INPUTS = ("mm_encoder_outputs", "mm_token_type_ids")
"""Inputs that transformers adds to calls of vision-language models, even for text alone."""
_STATEFUL = (
    hf.ClassifierFreeGuidanceLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    hf.WatermarkLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a call is not served."""

    subject: str
    reason: str
    fix: str = LEAVE_OUT
    assisted_differs: bool = False
    """Whether transformers' assisted decoding gives other text here than its plain decoding."""

    @property
    def error(self) -> InvalidRequest:
        """Return the error for a call that named foreword."""
        return InvalidRequest(f"cannot serve {self.subject}: {self.reason}. {self.fix}")

    def warning(self, outcome: str) -> str:
        """Return the warning for a call that goes to transformers."""
        return f"{self.subject}: {self.reason}; {outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of one `generate` call that decide whether it can be served."""

    model: PreTrainedModel
    setting: Setting
    inputs: Mapping[str, Any]
    """Inputs of the model, tokens and mask included."""
    processors: List[Any] = ()
    criteria: List[Any] = ()
    ends: bool = False
    """Whether a row that has ended is padded until all have."""
    stops: bool = False
    """Whether something else than end-of-text and length may end a row."""
    streamer: Any = None
    copies: int = 1
    """Rows per prompt."""
    explicit: bool = False
    """Whether the caller named foreword and so guarantees that processors and criteria are pure functions."""

    def refusal(self) -> Refusal | None:
        """Return the first reason not to serve this call; None if there is none."""
        refusal = (
            _model(self.model)
            or _option(self.setting)
            or _inputs(self.inputs)
            or _tokens(self.inputs, self.setting)
            or _processor(self.processors, self.explicit)
        )
        return refusal or self._rows()

    def _rows(self) -> Refusal | None:
        prompts = self.inputs.get("input_ids")
        rows = (1 if prompts is None else len(prompts)) * self.copies
        if rows == 1:
            return None
        if self.streamer is not None:
            return Refusal("streamer", f"it takes one row, and there are {rows} rows", "Stream them one by one")
        if self.stops and not self.ends:
            reason = "without an end-of-text token, stopped rows continue until all have stopped"
            return Refusal("stopping_criteria", reason, "Set eos_token_id, or give one prompt")
        custom = [criterion for criterion in self.criteria if not _is_transformers(criterion)]
        if custom and not self.explicit:
            return Refusal(f"stopping_criteria {called(custom[0])}", "it may depend on several rows")
        return None


def called(thing: object) -> str:
    """Return the name of a processor or a criterion."""
    return getattr(thing, "__name__", None) or type(thing).__name__


def _is_transformers(thing: object) -> bool:
    return type(thing).__module__.startswith("transformers.")


def _model(model: PreTrainedModel) -> Refusal | None:
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        return Refusal(kind, "an encoder-decoder is not supported")
    if _attribute(type(model), "_sample") is not _attribute(GenerationMixin, "_sample"):
        return Refusal(kind, "it has its own decoding loop")
    if model.main_input_name != "input_ids":
        return Refusal(kind, f"it reads {model.main_input_name}, not token ids alone")
    config = model.config.get_text_config()
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if masked and not getattr(config, "is_decoder", False):
        return Refusal(kind, "it is a masked language model with attention in both directions")
    if model.training and any(_has_dropout(module) for module in model.modules()):
        return Refusal(kind, "it is in training mode with dropout", "Call model.eval() first")
    return None


def _attribute(thing: object, name: str) -> Any:
    """Return an attribute that transformers' type hints hide."""
    return getattr(thing, name)


def _has_dropout(module: torch.nn.Module) -> bool:
    rates = [getattr(module, name, 0.0) for name in ("p", "attention_dropout", "dropout")]
    return module.training and any(isinstance(rate, float) and rate > 0 for rate in rates)


def _option(setting: Setting) -> Refusal | None:
    for name, neutral, reason in _REFUSED:
        value = setting(name)
        if value is not None and not isinstance(value, Tensor) and value in neutral:
            continue
        if value is not None:
            shown = f"{name}={value!r}" if isinstance(value, str | int | float) else name
            return Refusal(shown, reason)
    kind = setting("cache_implementation")
    if kind in _CACHE_KINDS:
        return Refusal(f"cache_implementation={kind!r}", _CACHE_KINDS[kind])
    return None


def _inputs(inputs: Mapping[str, Any]) -> Refusal | None:
    for name, value in inputs.items():
        if value is None or name in _SERVED:
            continue
        if name in _CACHES:
            # transformers adds an empty cache of its own to every call; ignoring it changes nothing.
            filled = any(getattr(layer, "is_initialized", False) for layer in getattr(value, "layers", ()))
            if filled or getattr(value, "_is_user_defined", False):
                reason = "a cache passed by the caller is neither read nor filled"
                return Refusal(name, reason, assisted_differs=filled)
        elif name not in _VISION_INPUTS or _has_image(value):
            return Refusal(name, "only token ids and attention_mask are read")
    return None


def _has_image(value: Any) -> bool:
    """Return whether a vision input holds an image or a video."""
    if isinstance(value, Mapping):
        return any(part is not None for part in value.values())
    return not isinstance(value, Tensor) or bool(value.any())


def _tokens(inputs: Mapping[str, Any], setting: Setting) -> Refusal | None:
    prompts, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if prompts is None:
        return None
    if not isinstance(prompts, Tensor) or prompts.dim() != 2 or not prompts.numel() or prompts.is_floating_point():
        return Refusal("input_ids", "only integer tensors of shape [batch, length] are read")
    if mask is None:
        mask = inferred(prompts, setting)
    if not isinstance(mask, Tensor) or mask.shape != prompts.shape:
        return Refusal("attention_mask", "its shape differs from input_ids")
    attended = mask.bool()
    if not bool(attended[:, -1].all()):
        fix = "Set tokenizer.padding_side = 'left'"
        return Refusal("attention_mask", "the prompts are padded on the right", fix)
    positions = inputs.get("position_ids")
    if positions is not None and not _is_consecutive(positions, attended):
        return Refusal("position_ids", "only consecutive positions from 0 are supported")
    return None


def inferred(prompts: Int[Tensor, "batch prompt"], setting: Setting) -> Shaped[Tensor, "batch prompt"]:
    """Return the default mask of transformers: all tokens but padding, if padding has its own token."""
    pad, end = setting("pad_token_id"), setting("eos_token_id")
    ends = end if isinstance(end, list | tuple) else [] if end is None else [int(end)]
    return torch.ones_like(prompts) if pad is None or pad in ends else prompts.ne(pad)


def _is_consecutive(positions: Tensor, attended: Tensor) -> bool:
    if not isinstance(positions, Tensor) or positions.shape[-1] != attended.shape[1] or positions.dim() not in (2, 3):
        return False
    if positions.shape[-2] not in (1, len(attended)):
        return False
    return bool(((positions == attended.long().cumsum(-1) - 1) | ~attended).all())


def _processor(processors: List[Any], explicit: bool) -> Refusal | None:
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            return Refusal(called(processor), "it depends on more than the tokens before a position")
        if not explicit and not _is_transformers(processor):
            return Refusal(
                f"logits_processor {called(processor)}", "it may depend on more than the tokens before a position"
            )
    return None


def check_names(model: PreTrainedModel, given: Iterable[str], ours: Iterable[str]) -> None:
    """Raise InvalidRequest for a likely typo of an argument of `generate` that transformers would refuse."""
    if getattr(model.config, "is_encoder_decoder", False):
        return  # its encoder takes other arguments
    options = {*ours, *vars(GenerationConfig()), *vars(model.generation_config or GenerationConfig())}
    options |= {
        *inspect.signature(_attribute(GenerationMixin, "generate")).parameters,
        "tokenizer",
        "assistant_tokenizer",
    }
    valid = options | {"trust_remote_code", "input_ids", *_VISION_INPUTS, *TransformersKwargs.__optional_keys__}
    for function in ("forward", "prepare_inputs_for_generation"):
        valid |= set(inspect.signature(_attribute(model, function)).parameters)
    for name in given:
        near = difflib.get_close_matches(name, options, 1, CLOSE) if name not in valid else []
        if near:
            raise InvalidRequest(f"cannot use argument {name!r}: it is unknown. Did you mean {near[0]!r}?")
