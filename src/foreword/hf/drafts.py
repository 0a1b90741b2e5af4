"""The draft model of a call: whether it can serve the target, and the drafter that is made of it.

Knows models and tokenizers; knows no method by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from foreword.draft import RETOLD, SHARED, Drafter
from foreword.draft import method as find_method
from foreword.draft.pairing import Pair, suited
from foreword.errors import VocabularyMismatch, words
from foreword.hf.loan import Acquaintance, acquaintance
from foreword.hf.refusal import Refusal
from foreword.model import Model, Tokenizer, load_tokenizer

PADDING = 1024
"""Tokens. Models of one tokenizer differ in size by less: families pad their embeddings (Qwen 128, Pythia 384)."""
FIX = (
    "Give tokenizer= and assistant_tokenizer=, and its tokens are translated (to custom_generate by functools.partial)"
)


@dataclass(frozen=True, slots=True)
class Aid:
    """A draft model in memory, and the tokenizers of target and draft model where they are known."""

    model: PreTrainedModel | Model
    tokenizers: tuple[Tokenizer | None, Tokenizer | None] = (None, None)

    @classmethod
    def load(
        cls, source: Any, target: PreTrainedModel, known: Acquaintance, tokenizers: tuple[Any, Any] = (None, None)
    ) -> Aid:
        """The draft model of a call, loaded where it is a folder or a hub id."""
        if not isinstance(source, str | Path):
            return cls(source, tokenizers)
        ours, theirs = tokenizers
        theirs = load_tokenizer(source) if ours is not None and theirs is None else theirs
        return cls(known.draft(str(source), target), (ours, theirs))

    def refusal(self, target: PreTrainedModel, known: Acquaintance, prompts: Tensor | None) -> Refusal | None:
        """Why it cannot draft for this target; None where it can."""
        model, what = self.model, f"draft model {type(self.model).__name__}"
        if not isinstance(model, PreTrainedModel | Model):
            return Refusal(what, "a model, a folder or a hub id is needed", "Give one of these")
        if isinstance(model, PreTrainedModel):
            if getattr(model.config, "is_encoder_decoder", False):
                return Refusal(what, "an encoder-decoder cannot draft", "Give a decoder-only model")
            cannot = None if model is target else acquaintance(model).refused
            if cannot:
                return Refusal(what, f"it cannot be driven ({cannot})", "Give another one")
        try:
            if self._translation(known, _size(target)) is not None:
                return None
        except VocabularyMismatch as error:
            return Refusal(what, words(error), "Give another one")
        ours, theirs = _size(target), _size(model)
        highest = int(prompts.max()) if isinstance(prompts, Tensor) and prompts.numel() else 0
        if theirs > ours or theirs < ours - PADDING or highest >= theirs:
            return Refusal(what, f"it has {theirs} tokens and the target {ours}, so it has another tokenizer", FIX)
        return None

    def translated(
        self, model: Model, known: Acquaintance, target: Model, name: str | None, tokens: List[int]
    ) -> Drafter | None:
        """What drafts with `model`, this draft model as it is driven, in translation; None where none is needed."""
        spoken = self._translation(known, target.vocab) if name in (None, SHARED, RETOLD) else None
        if spoken is None:
            return None
        pair = Pair(model, *spoken)
        chosen = name or suited(pair, tokens)
        if name is None:
            warnings.warn(f"the draft has another tokenizer; its tokens are translated ({chosen})", stacklevel=2)
        return cast("Callable[[Pair], Drafter]", find_method(chosen))(pair)

    def _translation(self, known: Acquaintance, size: int) -> Any:
        ours, theirs = self.tokenizers
        if ours is None or theirs is None:
            return None
        return known.translation((ours, size), (theirs, _size(self.model)))


def _size(model: PreTrainedModel | Model) -> int:
    return model.vocab if isinstance(model, Model) else model.config.get_text_config().vocab_size
