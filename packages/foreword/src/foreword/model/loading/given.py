"""Opens the model that a caller gives: a folder, a hub id, or a model in memory, which
stays unchanged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foreword.errors import ForewordError, InvalidRequest, ModelError
from foreword.errors import named as cause
from foreword.model.loading.complete import check_finite, weights
from foreword.model.loading.config import read_config
from foreword.model.loading.options import placed
from foreword.model.model import Model
from foreword.model.tokenizer import Tokenizer, load_tokenizer
from foreword.options import ModelOptions

Given = str | Path | PreTrainedModel | Model
"""A model, or its folder, hub id or GGUF file (a path, or "repo/id:name.gguf")."""
GivenTokenizer = Tokenizer | str | Path | Literal[False] | None
"""A tokenizer, or its folder or hub id; None = the target's own; False = none, for
tokens that are no text.
"""


def check_given(
    target: object, draft: object, tokenizer: object, options: ModelOptions
) -> None:
    """Raise InvalidRequest for an invalid target, draft or tokenizer, ModelError for a
    device that this machine lacks; loads nothing.
    """
    placed(options)
    check_model("target", target)
    for part, source in draft.items() if isinstance(draft, Mapping) else [("", draft)]:
        if source is not None:
            check_model(f"draft[{part!r}]" if part else "draft", source)
    if tokenizer is not False and not isinstance(
        tokenizer, str | Path | PreTrainedTokenizerBase | None
    ):
        raise InvalidRequest(
            "'tokenizer' must be a tokenizer of transformers, or its folder, or False "
            f"for token ids alone, got {_kind(tokenizer)}"
        )
    if isinstance(target, str | Path):
        return
    if (options.dtype, options.device) != ("auto", "auto"):
        raise InvalidRequest(
            "cannot change 'dtype' or 'device' of a model in memory. Move it with "
            "model.to(...) and leave them out"
        )
    if isinstance(target, Model) and options.changes_scores:
        raise InvalidRequest(
            "cannot change 'weights', 'kv' or 'portable' of a loaded model. Give them "
            "to Model.load and leave them out"
        )
    if options.tensor_parallel > 1:
        raise InvalidRequest(
            "cannot split a model in memory among ranks. Save it and give its folder, "
            "or leave 'tensor_parallel' out"
        )
    if options.offload_folder is not None:
        raise InvalidRequest(
            "cannot offload a model in memory. Save it and give its folder, or leave "
            "'offload_folder' out"
        )
    if tokenizer is None and not _home(target):
        raise InvalidRequest(
            "cannot find the tokenizer of this model: it was not loaded from a folder. "
            "Give tokenizer=..., or tokenizer=False if prompts are token ids"
        )


def check_model(option: str, model: object) -> None:
    """Raise InvalidRequest for all but a folder, a hub id or a model in memory."""
    if isinstance(model, str | Path) and str(model).strip() not in ("", "."):
        return
    if isinstance(model, PreTrainedModel) and not model.can_generate():
        raise InvalidRequest(
            f"cannot generate text with {type(model).__name__} as '{option}': it has "
            "no LM head. Load it with AutoModelForCausalLM"
        )
    if not isinstance(model, PreTrainedModel | Model):
        raise InvalidRequest(
            f"'{option}' must be a folder, a hub id or a language model of "
            f"transformers, got {_kind(model)}"
        )


def opened(
    target: Given, tokenizer: GivenTokenizer, options: ModelOptions
) -> tuple[Model, Tokenizer | None]:
    """Return a target and its tokenizer: the given one, else that of its folder or hub
    id, and None for False.

    A model in memory stays unchanged and usable: a twin runs, which shares its weights
    until a backend packs them. The twin does not follow later training. Before it is
    quantized, it is rounded to bfloat16, as a checkpoint is.
    """
    if isinstance(target, str | Path):
        read_config(target, trust_remote_code=options.trust_remote_code, seq2seq=True)
    if tokenizer is False:
        tokenizer = None
    # first: a missing tokenizer is found at once
    elif not isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer = load_tokenizer(
            tokenizer or _home(target), trust_remote_code=options.trust_remote_code
        )
    if isinstance(target, Model):
        target.draft_vocabulary = options.draft_vocabulary or target.draft_vocabulary
        return target, tokenizer
    if not isinstance(target, PreTrainedModel):
        return Model.load(target, options), tokenizer
    name = _home(target) or type(target).__name__
    check_finite(name, weights(target))
    from foreword.model.loading.in_memory import in_bfloat16, twin

    try:
        hf = twin(target)
        if options.changes_scores:
            hf = in_bfloat16(hf)
        model = Model(hf, name, backend=options.backend)
        model.quantize(options.weights, options.kv)
        model.make_portable(options.portable)
        model.draft_vocabulary = options.draft_vocabulary
        return model, tokenizer
    except ForewordError:
        raise
    except Exception as error:
        raise ModelError(
            f"cannot run {type(target).__name__}: {cause(error)}. Save it and give the "
            "folder instead"
        ) from error


def adapted(
    target: Given,
    tokenizer: GivenTokenizer,
    options: ModelOptions,
    adapters: Mapping[str, str | Path] | None,
) -> tuple[Model, Tokenizer | None]:
    """Return what `opened` does, with adapters that sequences may be read with; None =
    there will be none.
    """
    if adapters is None:
        return opened(target, tokenizer, options)
    # few targets have any
    from foreword.model.adapters import attach
    from foreword.model.adapters.folder import read_adapters

    attach.check_backend(options)
    loras = read_adapters(adapters)
    model, words = opened(target, tokenizer, options)
    if not isinstance(target, Model):
        slower = attach.slower(model, loras, options)
        if slower is not None:
            model, words = opened(target, tokenizer, slower)
    attach.attach(model, loras)
    return model, words


def load_draft(source: Given, target: Model) -> Model:
    """Return a draft model for a target; a folder or hub id is loaded in the target's
    dtype, on its device.

    A model of transformers in memory stays unchanged: a twin drafts. Raises
    InvalidRequest for a model that cannot read what the target reads.
    """
    if target.seq2seq is not None:
        from foreword.model.shared_encoder import load_sharing

        return load_sharing(source, target)
    model = load_alone(source, target)
    if model.seq2seq is not None:
        from foreword.model.shared_encoder import check_draft

        check_draft(model, target)
    return model


def load_alone(source: Given, target: Model) -> Model:
    """Return a draft model that shares nothing with its target."""
    if isinstance(source, Model):
        return source
    if isinstance(source, PreTrainedModel):
        from foreword.model.loading.in_memory import twin

        return Model(twin(source))
    return Model.load(
        source,
        dtype=target.dtype,
        device=str(target.device),
        trust_remote_code=target.trust_remote_code,
    )


def _home(model: object) -> str:
    """Return the folder or hub id of a model; empty where it is not recorded."""
    if isinstance(model, str | Path):
        return str(model)
    return (model.hf if isinstance(model, Model) else model).config.name_or_path  # type: ignore[union-attr]


def _kind(value: object) -> str:
    hint = "; give the language model inside it" if isinstance(value, nn.Module) else ""
    return (
        f"{value!r:.60}"
        if isinstance(value, int | float | str | list | None)
        else f"a {type(value).__name__}{hint}"
    )
