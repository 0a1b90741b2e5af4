"""What a caller gives as a target or a draft: a folder, a hub id, or a model in memory, which is left as it was.

Knows what can be taken; knows nothing about text or drafting.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foreword.errors import ForewordError, InvalidRequest, ModelError
from foreword.errors import named as cause
from foreword.model.config import read_config
from foreword.model.intact import check_finite, weights
from foreword.model.model import Model, options
from foreword.model.vocabulary import Tokenizer, load_tokenizer

Given = str | Path | PreTrainedModel | Model
"""A model: where it lies, or itself."""


def check_given(target: object, draft: object, tokenizer: object, **how: Any) -> None:
    """Raise InvalidRequest for what cannot be a target, a draft or a tokenizer; loads nothing.

    `how`: what `Model.load` is told, checked as by `options`.
    """
    options(dtype=how["dtype"], device=how["device"], way=how["way"])
    check_model("target", target)
    for part, source in draft.items() if isinstance(draft, Mapping) else [("", draft)]:
        if source is not None:
            check_model(f"draft[{part!r}]" if part else "draft", source)
    if not isinstance(tokenizer, str | Path | PreTrainedTokenizerBase | None):
        raise InvalidRequest(f"'tokenizer' must be a tokenizer of transformers, or its folder, got {_kind(tokenizer)}")
    if isinstance(target, str | Path):
        return
    if (how["dtype"], how["device"]) != ("auto", "auto"):
        raise InvalidRequest(
            "a model in memory keeps its 'dtype' and 'device'; move it with model.to(...), leave them out"
        )
    if tokenizer is None and not _home(target):
        raise InvalidRequest(
            "cannot tell which tokenizer belongs to this model: it was not loaded from a folder. Give tokenizer=..."
        )


def check_model(option: str, model: object) -> None:
    """Raise InvalidRequest where this is neither a place of a model nor a language model in memory."""
    if isinstance(model, str | Path) and str(model).strip() not in ("", "."):
        return
    if isinstance(model, PreTrainedModel) and not model.can_generate():
        raise InvalidRequest(
            f"cannot write text with {type(model).__name__} as '{option}': it has no head that scores tokens. Load it "
            "with AutoModelForCausalLM"
        )
    if not isinstance(model, PreTrainedModel | Model):
        raise InvalidRequest(
            f"'{option}' must be a folder, a hub id or a causal language model of transformers, got {_kind(model)}"
        )


def opened(target: Given, tokenizer: Tokenizer | str | Path | None = None, **how: Any) -> tuple[Model, Tokenizer]:
    """A target and its tokenizer: the one given, else that of its folder or hub id. `how` as for `Model.load`.

    A model in memory is neither changed nor kept from other use: a twin of it is driven, which shares its weights until
    a driver packs them, and does not follow later training.
    """
    if isinstance(target, str | Path):
        read_config(target, trust_remote_code=how["trust_remote_code"])
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # first: what is missing is missed in a moment
        tokenizer = load_tokenizer(tokenizer or _home(target), trust_remote_code=how["trust_remote_code"])
    if isinstance(target, Model):
        return target, tokenizer
    if not isinstance(target, PreTrainedModel):
        return Model.load(target, **how), tokenizer
    name = _home(target) or type(target).__name__
    check_finite(name, weights(target))
    try:
        return Model(twin(target), name, way=how["way"]), tokenizer
    except ForewordError:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot drive {type(target).__name__}: {cause(error)}. Save it and give the folder instead"
        ) from error


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """Modules and a config of its own over the very same weights."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return deepcopy(model, shared)


def _home(model: object) -> str:
    """Where a model was loaded from; nothing where that is not known."""
    if isinstance(model, str | Path):
        return str(model)
    return (model.hf if isinstance(model, Model) else model).config.name_or_path  # type: ignore[union-attr]


def _kind(given: object) -> str:
    hint = "; give the language model inside it" if isinstance(given, nn.Module) else ""
    return f"{given!r:.60}" if isinstance(given, int | float | str | list | None) else f"a {type(given).__name__}{hint}"
