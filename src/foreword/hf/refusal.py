"""Decides, before any work starts, whether a call of transformers' `generate` is served here, and says why not.

Knows transformers' options, inputs, processors and criteria by name; knows nothing about drafting.
"""

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
"""The value of a generation option by its name; None where it is not set."""
LEAVE_OUT = "Leave it out, or call generate without foreword"
CLOSE = 0.8
"""Likeness, by difflib, from which on one name is taken for a slip of another; token_type_ids is 0.7 eos_token_id."""

_BEAMS = "beam search is not sped up"
_OTHER_DRAFT = "transformers' own drafting takes part in this call"
_REFUSED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("num_beams", (1,), _BEAMS),
    ("num_beam_groups", (1,), _BEAMS),
    ("constraints", (), _BEAMS),
    ("force_words_ids", (), _BEAMS),
    ("penalty_alpha", (0,), "contrastive search is not sped up"),
    ("dola_layers", (), "it reads the logits of inner layers"),
    ("guidance_scale", (1,), "it runs the model a second time for every token"),
    ("negative_prompt_ids", (), "it runs the model a second time for every token"),
    ("watermarking_config", (), "a watermark depends on how the text was drawn"),
    ("use_mtp", (False,), _OTHER_DRAFT),
    ("assistant_early_exit", (), _OTHER_DRAFT),
    ("speculation_type", (), _OTHER_DRAFT),
    ("assistant_ensemble_weight", (0,), "it changes the distribution of the target"),
    ("output_attentions", (False,), "attention weights are not kept"),
    ("output_hidden_states", (False,), "hidden states are not kept"),
    ("token_healing", (False,), "it rewrites the end of the prompt"),
    ("synced_gpus", (False,), "every process must run the model equally often"),
)
"""(option, values that do nothing besides None, why any other is refused)"""
_CACHE_KINDS = {"quantized": "it rounds keys and values", "paged": "continuous batching is not sped up"}

_SERVED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_CACHES = ("past_key_values", "cache_params")
_OF_IMAGES = ("mm_encoder_outputs", "mm_token_type_ids")
"""Inputs that transformers or its processors add to calls of vision-language models, of text alone too."""
_STATEFUL = (
    hf.ClassifierFreeGuidanceLogitsProcessor,
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    hf.WatermarkLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not served."""

    what: str
    why: str
    fix: str = LEAVE_OUT
    assisted_differs: bool = False
    """transformers' assisted decoding writes another text here than its plain decoding."""

    @property
    def error(self) -> InvalidRequest:
        """What a call that insists on being served gets."""
        return InvalidRequest(f"cannot serve {self.what}: {self.why}. {self.fix}")

    def warning(self, then: str) -> str:
        """What a call that goes to transformers is told."""
        return f"{self.what}: {self.why}; {then}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of `generate`, as far as its own arguments decide who serves it."""

    model: PreTrainedModel
    setting: Setting
    inputs: Mapping[str, Any]
    """What the model is given, tokens and mask included."""
    processors: List[Any] = ()
    criteria: List[Any] = ()
    ends: bool = False
    """A row that has ended is padded until all have."""
    stops: bool = False
    """Something else than end-of-text and length may end a row."""
    streamer: Any = None
    copies: int = 1
    """Rows for each prompt."""
    vouched: bool = False
    """The caller named foreword, whose processors and criteria must be functions of what they are given."""

    def refusal(self) -> Refusal | None:
        """The first reason not to serve this call; None where there is none."""
        found = (
            _model(self.model)
            or _option(self.setting)
            or _inputs(self.inputs)
            or _tokens(self.inputs, self.setting)
            or _processor(self.processors, self.vouched)
        )
        return found or self._rows()

    def _rows(self) -> Refusal | None:
        prompts = self.inputs.get("input_ids")
        rows = (1 if prompts is None else len(prompts)) * self.copies
        if rows == 1:
            return None
        if self.streamer is not None:
            return Refusal("streamer", f"it reads one text, and there are {rows} rows", "Stream them one by one")
        if self.stops and not self.ends:
            why = "with no end-of-text token, rows that have stopped go on until all have"
            return Refusal("stopping_criteria", why, "Set eos_token_id, or give one prompt")
        own = [criterion for criterion in self.criteria if not _theirs(criterion)]
        if own and not self.vouched:
            return Refusal(f"stopping_criteria {called(own[0])}", "it may look at several rows at once")
        return None


def called(thing: object) -> str:
    """The name of a processor or a criterion."""
    return getattr(thing, "__name__", None) or type(thing).__name__


def _theirs(thing: object) -> bool:
    return type(thing).__module__.startswith("transformers.")


def _model(model: PreTrainedModel) -> Refusal | None:
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        return Refusal(kind, "an encoder-decoder is not sped up")
    if _attribute(type(model), "_sample") is not _attribute(GenerationMixin, "_sample"):
        return Refusal(kind, "it has a way of its own to generate")
    if model.main_input_name != "input_ids":
        return Refusal(kind, f"it reads {model.main_input_name}, not token ids alone")
    config = model.config.get_text_config()
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if masked and not getattr(config, "is_decoder", False):
        return Refusal(kind, "it is a masked model, which reads a text in both directions")
    if model.training and any(_drops(module) for module in model.modules()):
        return Refusal(kind, "it is in training mode and drops at random", "Call model.eval() first")
    return None


def _attribute(thing: object, name: str) -> Any:
    """Read what transformers' own types hide."""
    return getattr(thing, name)


def _drops(module: torch.nn.Module) -> bool:
    rates = [getattr(module, name, 0.0) for name in ("p", "attention_dropout", "dropout")]
    return module.training and any(isinstance(rate, float) and rate > 0 for rate in rates)


def _option(setting: Setting) -> Refusal | None:
    for name, neutral, why in _REFUSED:
        value = setting(name)
        if value is not None and not isinstance(value, Tensor) and value in neutral:
            continue
        if value is not None:
            shown = f"{name}={value!r}" if isinstance(value, str | int | float) else name
            return Refusal(shown, why)
    kind = setting("cache_implementation")
    if kind in _CACHE_KINDS:
        return Refusal(f"cache_implementation={kind!r}", _CACHE_KINDS[kind])
    return None


def _inputs(inputs: Mapping[str, Any]) -> Refusal | None:
    for name, value in inputs.items():
        if value is None or name in _SERVED:
            continue
        if name in _CACHES:
            # transformers brings an empty one of its own to every call, which nobody misses.
            filled = any(getattr(layer, "is_initialized", False) for layer in getattr(value, "layers", ()))
            if filled or getattr(value, "_is_user_defined", False):
                why = "a cache that the call brings is neither read nor filled"
                return Refusal(name, why, assisted_differs=filled)
        elif name not in _OF_IMAGES or _shows(value):
            return Refusal(name, "only token ids and attention_mask are read")
    return None


def _shows(value: Any) -> bool:
    """There is an image or a film in it."""
    if isinstance(value, Mapping):
        return any(part is not None for part in value.values())
    return not isinstance(value, Tensor) or bool(value.any())


def _tokens(inputs: Mapping[str, Any], setting: Setting) -> Refusal | None:
    prompts, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if prompts is None:
        return None
    if not isinstance(prompts, Tensor) or prompts.dim() != 2 or not prompts.numel() or prompts.is_floating_point():
        return Refusal("input_ids", "only whole numbers in rows are read")
    if mask is None:
        mask = inferred(prompts, setting)
    if not isinstance(mask, Tensor) or mask.shape != prompts.shape:
        return Refusal("attention_mask", "it has another shape than the tokens")
    seen = mask.bool()
    if not bool(seen[:, -1].all()):
        fix = "Set tokenizer.padding_side = 'left'"
        return Refusal("attention_mask", "the prompts are padded on the right", fix)
    given = inputs.get("position_ids")
    if given is not None and not _usual(given, seen):
        return Refusal("position_ids", "only tokens that are numbered from 0 without gaps are read")
    return None


def inferred(prompts: Int[Tensor, "batch prompt"], setting: Setting) -> Shaped[Tensor, "batch prompt"]:
    """The mask that transformers makes for prompts that come without one: all but padding, if it has its own token."""
    pad, end = setting("pad_token_id"), setting("eos_token_id")
    ends = end if isinstance(end, list | tuple) else [] if end is None else [int(end)]
    return torch.ones_like(prompts) if pad is None or pad in ends else prompts.ne(pad)


def _usual(given: Tensor, seen: Tensor) -> bool:
    if not isinstance(given, Tensor) or given.shape[-1] != seen.shape[1] or given.dim() not in (2, 3):
        return False
    if given.shape[-2] not in (1, len(seen)):
        return False
    return bool(((given == seen.long().cumsum(-1) - 1) | ~seen).all())


def _processor(processors: List[Any], vouched: bool) -> Refusal | None:
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            return Refusal(called(processor), "its answer depends on more than the tokens before a position")
        if not vouched and not _theirs(processor):
            return Refusal(
                f"logits_processor {called(processor)}", "it may depend on more than the tokens before a position"
            )
    return None


def check_names(model: PreTrainedModel, given: Iterable[str], ours: Iterable[str]) -> None:
    """Raise InvalidRequest for an argument that is nearly one of `generate` and that transformers would refuse."""
    if getattr(model.config, "is_encoder_decoder", False):
        return  # its encoder has arguments of its own
    options = {*ours, *vars(GenerationConfig()), *vars(model.generation_config or GenerationConfig())}
    options |= {
        *inspect.signature(_attribute(GenerationMixin, "generate")).parameters,
        "tokenizer",
        "assistant_tokenizer",
    }
    known = options | {"trust_remote_code", "input_ids", *_OF_IMAGES, *TransformersKwargs.__optional_keys__}
    for function in ("forward", "prepare_inputs_for_generation"):
        known |= set(inspect.signature(_attribute(model, function)).parameters)
    for name in given:
        near = difflib.get_close_matches(name, options, 1, CLOSE) if name not in known else []
        if near:
            raise InvalidRequest(f"unknown argument {name}; did you mean {near[0]}?")
