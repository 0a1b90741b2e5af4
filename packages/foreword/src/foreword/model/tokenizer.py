"""Loads tokenizers with clear errors; checks that target and draft model share one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from foreword.errors import InvalidRequest, ModelError, VocabularyMismatch, words
from foreword.model.loading import hub
from foreword.model.loading.config import (
    CONFIG,
    misplaced_head,
    read_json,
    untrusted,
)

Tokenizer = PreTrainedTokenizerBase


FILES = ("tokenizer.json", "tokenizer_config.json")


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """Return the tokenizer of a checkpoint; code from its folder runs only with
    `trust_remote_code`.

    Raises ModelError where there is none, or it is damaged.
    """
    path = hub.gguf(source)
    if hub.lost(source):
        raise ModelError(
            f"cannot load a tokenizer from {source}: no such folder exists"
        )
    try:
        if path is not None:
            from foreword.model.quantized.gguf_file import GgufFile
            from foreword.model.quantized.gguf_tokenizer import gguf_tokenizer

            return gguf_tokenizer(GgufFile.open(source, path))
        return AutoTokenizer.from_pretrained(
            trust_remote_code=trust_remote_code, **hub.location(source)
        )
    except ModelError:
        raise
    except Exception as error:
        # Raises for a file that is not a JSON object.
        own_config, *_ = [read_json(source, name) for name in reversed(FILES)]
        config = read_json(source, CONFIG) or {}
        config = {**config, **(own_config or {})}
        refused = (
            untrusted(source, error, config)
            or misplaced_head(source, config)
            or _without_tokenizer(source, error, config)
        )
        raise refused from error


def _without_tokenizer(
    source: str | Path, error: Exception, config: Mapping[str, Any]
) -> ModelError:
    """Return the error for a checkpoint without a usable tokenizer."""
    if config:
        why = words(error)
        return ModelError(f"cannot load a tokenizer from {source}: {why}")
    return ModelError(
        f"cannot load a model from {source}: "
        f"it holds neither {CONFIG} nor a tokenizer. "
        "Give the folder that holds them, or a hub id"
    )


def need_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer. Raises InvalidRequest where there is none."""
    if tokenizer is None:
        raise InvalidRequest(
            "cannot read or write text: this model runs without a tokenizer "
            "(tokenizer=False). Give token ids: as the prompt, in 'stop_token_ids' and "
            "'bad_word_ids'"
        )
    return tokenizer


def check_same(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise VocabularyMismatch, with the number of tokens that differ, unless both map
    every token to the same id.
    """
    ours = target.get_vocab()
    theirs = draft.get_vocab()
    different = len({token for token, _ in ours.items() ^ theirs.items()})
    if different:
        raise VocabularyMismatch(
            "cannot use this draft model: it does not share the target's tokenizer: "
            f"{different} tokens differ (of {len(ours)} and {len(theirs)}). Use a "
            "draft model of the same family, a method that works across "
            "vocabularies, or one that needs no model"
        )
