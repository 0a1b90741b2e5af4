"""The draft model of a call: whether it fits the target, and its drafter."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from foreword.draft import Drafter
from foreword.draft import method as find_method
from foreword.draft.cross_vocab.pairing import VocabularyPair, suited
from foreword.errors import VocabularyMismatch, words
from foreword.hf.borrowed import ModelRecord, model_record
from foreword.hf.refusal import Refusal
from foreword.model import Model, Tokenizer, is_seq2seq, load_tokenizer
from foreword.model.shared_encoder import is_decoder
from foreword.registry import SHARED_TEXT, SHARED_TOKENS

PADDING = 1024
"""Tokens.

Models of one tokenizer differ in vocabulary size by less: embeddings are padded (Qwen
128, Pythia 384).
"""
TRANSLATED = (
    "it has another tokenizer, and draft tokens are translated for decoder-only models "
    "alone"
)
SAME = "Give one with the target's tokenizer"
FIX = (
    "Give tokenizer= and assistant_tokenizer= to translate its tokens (to "
    "custom_generate by functools.partial)"
)


@dataclass(frozen=True, slots=True)
class AssistantModel:
    """A draft model in memory, with the tokenizers of target and draft model."""

    model: PreTrainedModel | Model
    tokenizers: tuple[Tokenizer | None, Tokenizer | None] = (None, None)

    @classmethod
    def load(
        cls,
        source: Any,
        target: PreTrainedModel,
        record: ModelRecord,
        tokenizers: tuple[Any, Any] = (None, None),
    ) -> "AssistantModel":
        """Return the draft model of a call, loaded if it is a folder or a hub id."""
        if not isinstance(source, str | Path):
            return cls(source, tokenizers)
        ours, theirs = tokenizers
        theirs = (
            load_tokenizer(source) if ours is not None and theirs is None else theirs
        )
        return cls(record.draft(str(source), target), (ours, theirs))

    def refusal(
        self, target: PreTrainedModel, record: ModelRecord, prompts: Tensor | None
    ) -> Refusal | None:
        """Return why it cannot draft for this target; None if it can."""
        model, name = self.model, f"draft model {type(self.model).__name__}"
        if not isinstance(model, PreTrainedModel | Model):
            return Refusal(
                name, "it is not a model, folder or hub id", "Give one of these"
            )
        seq2seq, alone = is_seq2seq(target.config), is_decoder(model, target)
        if (
            not alone
            and is_seq2seq((model.hf if isinstance(model, Model) else model).config)
            is not seq2seq
        ):
            kinds = "an encoder-decoder", "a decoder-only model"
            needed, kind = kinds if seq2seq else kinds[::-1]
            return Refusal(name, f"{kind} cannot draft for {needed}", f"Give {needed}")
        if isinstance(model, PreTrainedModel) and not alone:
            reason = None if model is target else model_record(model).refused
            if reason:
                return Refusal(
                    name, f"no backend can run it ({reason})", "Give another one"
                )
        try:
            if self._translation(record, _size(target)) is not None:
                return Refusal(name, TRANSLATED, SAME) if seq2seq else None
        except VocabularyMismatch as error:
            return Refusal(name, words(error), "Give another one")
        ours, theirs = _size(target), _size(model)
        highest = (
            int(prompts.max()) if isinstance(prompts, Tensor) and prompts.numel() else 0
        )
        if theirs > ours or theirs < ours - PADDING or highest >= theirs:
            reason = (
                f"it has {theirs} tokens and the target {ours}, so it has another "
                "tokenizer"
            )
            return Refusal(name, reason, SAME if seq2seq else FIX)
        return None

    def translated(
        self,
        model: Model,
        record: ModelRecord,
        target: Model,
        name: str | None,
        tokens: Sequence[int],
    ) -> Drafter | None:
        """Return a drafter that translates the tokens of `model`, this draft model;
        None if that is not needed.
        """
        translation = (
            self._translation(record, target.vocab)
            if name in (None, SHARED_TOKENS, SHARED_TEXT)
            else None
        )
        if translation is None:
            return None
        pair = VocabularyPair(model, *translation)
        chosen = name or suited(pair, tokens)
        if name is None:
            warnings.warn(pair.notice, stacklevel=2)
        return cast("Callable[[VocabularyPair], Drafter]", find_method(chosen))(pair)

    def _translation(self, record: ModelRecord, size: int) -> Any:
        ours, theirs = self.tokenizers
        if ours is None or theirs is None:
            return None
        return record.translation((ours, size), (theirs, _size(self.model)))


def _size(model: PreTrainedModel | Model) -> int:
    return (
        model.vocab
        if isinstance(model, Model)
        else model.config.get_text_config().vocab_size
    )
