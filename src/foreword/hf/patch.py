"""`foreword.enable`: transformers' own `generate` speculates with Foreword wherever speculation is asked for.

Knows the spellings people use; whatever cannot be served goes to transformers untouched, with a warning that says why.
"""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any

from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from foreword.hf.generation import generate
from foreword.hf.refusal import Setting, refused_input, refused_option

_GUARD = Lock()
_HOST: Any = GenerationMixin
"""The class whose `generate` every model inherits; Any, for its own type lets nobody assign it."""


class Enabled:
    """What `enable` returns; as a context manager it takes back what that call changed, and nothing else."""

    def __init__(self, changed: bool) -> None:
        self._changed = changed

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changed:
            disable()


def enable() -> Enabled:
    """Serve speculative calls of every `model.generate` with Foreword. Calling it twice does nothing more.

    Served are `draft_model=small` (a model, a folder or a hub id), `assistant_model=small`,
    `prompt_lookup_num_tokens=n`, and `speculative_decoding=True` with or without a draft model. All other calls, and
    those that cannot be served exactly (beams, encoder-decoders, another tokenizer …), are transformers' own; the
    latter warn.

    >>> foreword.enable()
    >>> model.generate(**inputs, draft_model=small, max_new_tokens=64)
    """
    with _GUARD:
        changed = not hasattr(_HOST.generate, "_before_foreword")
        if changed:
            _HOST.generate = _routed(_HOST.generate)
        return Enabled(changed)


def disable() -> None:
    """Give transformers its `generate` back. Without `enable` before, does nothing."""
    with _GUARD:
        _HOST.generate = getattr(_HOST.generate, "_before_foreword", _HOST.generate)


def _routed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original, but for calls that ask for speculation and can be served."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def routed(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        asked, small = kwargs.pop("speculative_decoding", None), kwargs.pop("draft_model", None)
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        del given["self"]
        small = given.get("assistant_model") if small is None else small
        setting = _setting(self, given)
        wanted = small is not None or asked or setting("prompt_lookup_num_tokens") is not None
        if not wanted or asked is False or given.get("custom_generate") is not None:
            return original(self, *args, **kwargs)
        reason = _reason(self, small, given, setting)
        if reason is None:
            return original(self, **_served(small, given, setting))
        warnings.warn(f"not speculating with Foreword, transformers goes on by itself: {reason}", stacklevel=2)
        if isinstance(small, PreTrainedModel):
            given["assistant_model"] = small
        return original(self, **given)

    routed._before_foreword = original  # type: ignore[attr-defined]
    return routed


def _setting(model: PreTrainedModel, given: dict[str, Any]) -> Setting:
    """Options as transformers finds them: the call's own, then its generation_config, then the model's."""
    configs = [given.get("generation_config"), model.generation_config]

    def setting(name: str) -> Any:
        values = [given.get(name), *(getattr(config, name, None) for config in configs)]
        return next((value for value in values if value is not None), None)

    return setting


def _reason(model: PreTrainedModel, small: object, given: dict[str, Any], setting: Setting) -> str | None:
    """Why a call cannot be served; None where it can."""
    options = set(vars(GenerationConfig())) | set(inspect.signature(_HOST.generate).parameters) | {"tokenizer"}
    inputs = {name: value for name, value in given.items() if name not in options}
    for name in ("inputs_embeds", "negative_prompt_ids", "assistant_tokenizer", "past_key_values", "cache_params"):
        if given.get(name) is not None:
            return f"{name} cannot be served: Foreword reads token ids, and a draft model with the same tokenizer"
    if getattr(model.generation_config, "stop_strings", None) is not None:
        return "the model's own generation_config holds stop_strings; pass them to the call"
    if isinstance(small, PreTrainedModel):
        if getattr(small.config, "is_encoder_decoder", False):
            return f"the draft model {type(small).__name__} is an encoder-decoder"
        ours, theirs = (m.config.get_text_config().vocab_size for m in (model, small))
        if theirs > ours:
            return f"the draft model knows {theirs} tokens and the target only {ours}: not the same tokenizer"
    if given.get("streamer") is not None and len(given.get("inputs", given.get("input_ids", ()))) > 1:
        return "a streamer reads one text, and there are more rows"
    return refused_input(model, inputs) or refused_option(setting)


def _served(small: Any, given: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """The arguments with which the original prepares everything and then calls us.

    It would not hand its tokenizer on to the stop strings of a callable, so these become a criterion here.
    """
    ours = {name: value for name, value in given.items() if name not in ("assistant_model", "prompt_lookup_num_tokens")}
    stop, tokenizer = setting("stop_strings"), ours.pop("tokenizer", None)
    if stop is not None and tokenizer is not None:
        criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=stop)
        ours["stopping_criteria"] = StoppingCriteriaList([*(ours.get("stopping_criteria") or ()), criterion])
        ours.pop("stop_strings", None)
        if ours.get("generation_config") is not None:
            ours["generation_config"] = copy.deepcopy(ours["generation_config"])
            ours["generation_config"].stop_strings = None
    ours["custom_generate"] = functools.partial(generate, drafter=small, streamer=given.get("streamer"))
    return ours
