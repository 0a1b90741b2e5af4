"""Tokenizers: loaded with a clear error, and compared before a drafter's ids are taken for the target's.

Knows vocabularies; knows nothing about models or text.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from foreword.errors import ModelError, VocabularyMismatch, words
from foreword.model import hub
from foreword.model.config import CONFIG, read_json, untrusted

Tokenizer = PreTrainedTokenizerBase


FILES = ("tokenizer.json", "tokenizer_config.json")


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a checkpoint; code from its folder runs only where that is trusted.

    Raises ModelError when there is none, or it is damaged.
    """
    if hub.lost(source):
        raise ModelError(f"{source} has no tokenizer that can be loaded: there is no such folder")
    try:
        return AutoTokenizer.from_pretrained(
            source, trust_remote_code=trust_remote_code, local_files_only=hub.local_only(source)
        )
    except ModelError:
        raise
    except Exception as error:
        config, *_ = [read_json(source, name) for name in reversed(FILES)]  # which of them is no JSON object, if one is
        if refused := untrusted(source, error, {**(read_json(source, CONFIG) or {}), **(config or {})}):
            raise refused from error
        raise ModelError(f"{source} has no tokenizer that can be loaded: {words(error)}") from error


def check_same(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise VocabularyMismatch, with the number of tokens that differ, unless both map every token to the same id."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    different = len({token for token, _ in ours.items() ^ theirs.items()})
    if different:
        raise VocabularyMismatch(
            f"target and draft model do not share a tokenizer: {different} tokens differ (of {len(ours)} and "
            f"{len(theirs)}). Use a draft model of the same family, or another drafter: one that translates, or one "
            "that needs no model"
        )
