"""Tokenizers: loaded with a clear error, and compared before a drafter's ids are taken for the target's.

Knows vocabularies; knows nothing about models or text.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from foreword.errors import ModelError, VocabularyMismatch, words

Tokenizer = PreTrainedTokenizerBase


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint. Raises ModelError when there is none."""
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        why = "there is no such folder" if lost(source) else words(error)
        raise ModelError(f"{source} has no tokenizer that can be loaded: {why}") from error


def lost(source: str | Path) -> bool:
    """Whether this can only be a folder, and there is none: the hub would say that it is no good as an id."""
    return str(source).startswith(("/", ".", "~")) and not Path(source).expanduser().exists()


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
