"""`foreword.enable`: transformers' own `generate` runs speculative calls with Foreword.

A call that cannot be served goes to transformers unchanged, with a warning that gives
the reason.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from threading import Lock
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.modeling_outputs import BaseModelOutput

from foreword.errors import InvalidRequest, words
from foreword.hf.borrowed import model_record
from foreword.hf.draft_models import AssistantModel
from foreword.hf.generation import generate, serve
from foreword.hf.inputs import Setting
from foreword.hf.loop import Speculation
from foreword.hf.own_drafts import OPTIONS, is_set, own_draft
from foreword.hf.pictures import PIXELS, image_rows_of, picture_inputs
from foreword.hf.refusal import Refusal
from foreword.hf.unsupported import Call, check_names
from foreword.model import is_seq2seq
from foreword.model.layers import CACHES
from foreword.model.loading.given import check_model
from foreword.options import DraftingOptions

_GUARD = Lock()
_OURS = ("speculative_decoding", "draft_model")
"""Arguments that `generate` gains."""
_DRAFTING = ("prompt_lookup_num_tokens", *OPTIONS)
"""Options of transformers that ask for drafts without a draft model."""
_HOST: Any = GenerationMixin
"""The class whose `generate` models inherit; Any, as its type forbids assignment."""


class Enabled:
    """Result of `enable`; as a context manager it undoes what that call changed."""

    def __init__(self, changed: bool) -> None:
        self._changed = changed

    def __enter__(self) -> "Enabled":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._changed:
            disable()


def enable() -> Enabled:
    """Serve speculative calls of every `model.generate` with Foreword. Calling it twice
    does nothing more.

    Served are `draft_model=small` (a model, a folder or a hub id),
    `assistant_model=small`, `prompt_lookup_num_tokens=n`,
    `assistant_early_exit=layers`, `use_mtp=True`, and `speculative_decoding=True` with
    or without a draft model. With `tokenizer` and `assistant_tokenizer`, the draft
    model may have another tokenizer. All other calls run in transformers. So do calls
    that cannot be served exactly (beams, images of several prompts, caches, custom
    processors …): they reach it unchanged, with a warning that gives the reason. Custom
    processors that `foreword.pure` marks are served.

    Examples:
        >>> foreword.enable()
        >>> model.generate(**inputs, draft_model=small, max_new_tokens=64)
    """
    with _GUARD:
        changed = not hasattr(_HOST.generate, "_before_foreword")
        if changed:
            _HOST.generate = _routed(_HOST.generate)
        return Enabled(changed)


def disable() -> None:
    """Restore transformers' own `generate`, if `enable` has replaced it."""
    with _GUARD:
        _HOST.generate = getattr(_HOST.generate, "_before_foreword", _HOST.generate)


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the original: run calls that ask for speculation here where possible."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def routed(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        options = (
            inspect.signature(generate).parameters
            if kwargs.get("custom_generate") is generate
            else _OURS
        )
        check_names(
            self, (name for name, value in kwargs.items() if value is not None), options
        )
        requested, small = (kwargs.pop(name, None) for name in _OURS)
        _check_own(requested, small)
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        arguments |= arguments.pop("kwargs", {})
        del arguments["self"]
        setting = _setting(self, arguments)
        draft = arguments.get("assistant_model") if small is None else small
        speculate = (
            draft is not None
            or requested
            or any(is_set(setting, name) for name in _DRAFTING)
        )
        if (
            not speculate
            or requested is False
            or arguments.get("custom_generate") is not None
        ):
            return original(self, *args, **kwargs)
        served = _served(self, draft, arguments, setting)
        if not isinstance(served, Refusal):
            return original(self, **served)
        if served.assisted_differs and (draft is not None or not requested):
            warnings.warn(
                served.warning("transformers runs this call without drafting"),
                stacklevel=2,
            )
            return original(self, **_without_drafting(arguments, setting))
        drops = small is not None and arguments.get("assistant_model") is None
        then = (
            "transformers runs this call "
            f"{'without the draft model' if drops else 'unchanged'}"
        )
        warnings.warn(served.warning(then), stacklevel=2)
        return original(self, *args, **kwargs)

    routed._before_foreword = original  # type: ignore[attr-defined]
    return routed


def _check_own(requested: object, draft: object) -> None:
    """Raise InvalidRequest for values of our own arguments that mean nothing."""
    if not isinstance(requested, bool | None):
        raise InvalidRequest(
            f"cannot use speculative_decoding={requested!r}: it must be True or False. "
            "Give one, or leave it out"
        )
    if draft is not None:
        check_model("draft_model", draft)


def _setting(model: PreTrainedModel, arguments: dict[str, Any]) -> Setting:
    """Return a lookup of options in transformers' order: the call, its
    generation_config, the model's.
    """
    configs = [arguments.get("generation_config"), model.generation_config]

    def setting(name: str) -> Any:
        if name in arguments:
            return arguments[name]  # None too: it overrides a configuration
        return next(
            (
                value
                for config in configs
                if (value := getattr(config, name, None)) is not None
            ),
            None,
        )

    return setting


def _served(
    model: PreTrainedModel, draft: Any, arguments: dict[str, Any], setting: Setting
) -> dict[str, Any] | Refusal:
    """Return arguments with which the original prepares the call and then runs `serve`,
    or the refusal.
    """
    others = {"draft model": draft, _DRAFTING[0]: setting(_DRAFTING[0])}
    drafter = own_draft(model, setting, others)
    call = _call(model, arguments, setting)
    refusal = call.refusal()
    if refusal:
        return refusal
    record = model_record(model)
    if record.refused:
        return Refusal(
            type(model).__name__, f"no backend can run it ({record.refused})"
        )
    tokenizers = arguments.get("tokenizer"), arguments.get("assistant_tokenizer")
    if draft is not None:
        assistant = AssistantModel.load(draft, model, record, tokenizers)
        refusal = assistant.refusal(model, record, call.inputs.get("input_ids"))
        if refusal:
            return refusal
    ours = _without_drafting(arguments, setting)
    stop, tokenizer = setting("stop_strings"), ours.pop("tokenizer", None)
    # transformers does not pass its tokenizer to a callable
    if stop is not None and tokenizer is not None:
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop)
        ours["stopping_criteria"] = StoppingCriteriaList(
            [*(ours.get("stopping_criteria") or ()), criterion]
        )
        ours["stop_strings"] = None
    if is_seq2seq(model.config) and call.inputs.get(model.main_input_name) is not None:
        # or transformers would run the encoder too
        ours["encoder_outputs"] = BaseModelOutput(torch.empty(0))
    images = None
    if pictures := picture_inputs(model, call.inputs):
        try:
            images = image_rows_of(model, call.inputs["input_ids"], pictures)
        except InvalidRequest as error:
            return Refusal(PIXELS, words(error))
    speculation = Speculation(
        drafter=draft if drafter is None else drafter.source,
        drafting=DraftingOptions(method=None if drafter is None else drafter.method),
        tokenizers=tokenizers,
    )
    streamer = arguments.get("streamer")
    ours["custom_generate"] = functools.partial(
        serve, speculation=speculation, streamer=streamer, images=images
    )
    return ours


def _call(model: PreTrainedModel, arguments: dict[str, Any], setting: Setting) -> Call:
    """Describe a call by its own arguments, before transformers has prepared it."""
    options = {*vars(GenerationConfig()), *inspect.signature(_HOST.generate).parameters}
    options |= {"tokenizer", "assistant_tokenizer", "trust_remote_code"}
    inputs = {
        name: value
        for name, value in arguments.items()
        if name not in options or name == "use_cache"
    }
    if arguments.get("inputs") is not None:
        inputs[model.main_input_name] = arguments["inputs"]
    criteria = list(arguments.get("stopping_criteria") or ())
    own_ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    timed = setting("stop_strings") is not None or setting("max_time") is not None
    for name in CACHES:
        if inputs.get(name) is not None:
            inputs[name] = _of_caller(inputs[name])
    return Call(
        model=model,
        setting=setting,
        inputs=inputs,
        processors=list(arguments.get("logits_processor") or ()),
        criteria=criteria,
        ends=own_ends or setting("eos_token_id") is not None,
        stops=bool(criteria) or timed,
        streamer=arguments.get("streamer"),
        copies=setting("num_return_sequences") or 1,
    )


def _of_caller(cache: Any) -> SimpleNamespace:
    """Return a cache as one that the caller passed, empty or not."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return SimpleNamespace(layers=layers, _is_user_defined=True)


def _without_drafting(arguments: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Return the arguments of the same call without drafting."""
    plain = {
        name: value
        for name, value in arguments.items()
        if name not in ("assistant_model", "assistant_tokenizer")
    }
    for name in _DRAFTING:
        plain.pop(name, None)
        if setting(name) is not None:
            plain[name] = None
    return plain
