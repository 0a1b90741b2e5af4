"""A smaller language model with the target's tokenizer as drafter (Leviathan et al.
2023; Chen et al. 2023).

It tracks which part of its KV cache is committed text; tree/drafter.py grows the draft
tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.tree.drafter import DraftModel, ModelDrafter, capacity, catch_up
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import (
    Model,
    Read,
    Tokenizer,
    check_same,
    load_draft,
    load_tokenizer,
)
from foreword.registry import OWN_METHODS
from foreword.types import Batch, DraftTree, Request

if TYPE_CHECKING:
    from foreword.draft.vocabulary import DraftVocabulary

FIRST, LARGE = 2**15, 3 * 2**15
"""Token ids that a draft model chooses from, if it has many (FR-Spec: of Llama 3's
128,256; of 151,936, measured in docs/notes/measured/draft-vocabulary.md).
"""


@dataclass(slots=True)
class _Memory:
    """Tokens of a request that the model has read: `length` committed, then drafts."""

    length: int = 0
    draft_tokens: dict[tuple[int, int], int] = field(default_factory=dict)
    """(index of the parent, token) -> index in the draft; parent -1 = the text."""

    def remember(self, tree: DraftTree) -> None:
        """Record that these draft tokens were read after the text, in this order."""
        pairs = zip(tree.parents, tree.tokens, strict=True)
        self.draft_tokens = {pair: node for node, pair in enumerate(pairs)}

    @property
    def tree(self) -> DraftTree:
        """The draft tokens that were read, in this order."""
        pairs = list(self.draft_tokens)
        return DraftTree([token for _, token in pairs], [parent for parent, _ in pairs])

    def settle(self, tokens: list[int]) -> list[int]:
        """Count accepted draft tokens as read, and return their indices, counted from
        the end of the text before.

        The last token is always left unread: its logits predict the next one.
        """
        path: list[int] = []
        node = -1
        while self.length < len(tokens) - 1:
            node = self.draft_tokens.get((node, tokens[self.length]), -2)
            if node < 0:
                break
            path.append(node)
            self.length += 1
        self.draft_tokens = {}
        self.length = min(self.length, len(tokens) - 1)
        return path


class LanguageModelDrafter(ModelDrafter):
    """Drafter with any causal model that shares the target's tokenizer."""

    about = OWN_METHODS["lm"]
    limits_head: ClassVar[bool] = True
    """It may draft from some ids alone."""

    def __init__(
        self,
        model: Model,
        vocab: int | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        """Use `vocab` of the target if larger: models of one family pad their
        embeddings to different sizes.

        `draft_model`: source of the logits after the text; None = `model`.
        """
        super().__init__(model if draft_model is None else draft_model)
        self.model = self.quantizable = model
        self._vocab = vocab or model.vocab
        self.draft_vocabulary: DraftVocabulary | None = None
        """The ids that it drafts from; None = all."""
        self._memories: dict[int, _Memory] = {}

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "LanguageModelDrafter":
        if source is None:
            raise InvalidRequest(
                "cannot load this method: it needs a draft model. Give draft='folder "
                "or hub id'"
            )
        if isinstance(source, str | Path) and tokenizer is not None:
            check_same(
                tokenizer,
                load_tokenizer(source, trust_remote_code=target.trust_remote_code),
            )
        model = load_draft(source, target)
        model.cache_tokens = target.cache_tokens
        if model.vocab > target.vocab:
            raise VocabularyMismatch(
                f"cannot draft with this model: it has {model.vocab} tokens and the "
                f"target only {target.vocab}. Give one with the target's tokenizer, or "
                "use a method that needs no model"
            )
        drafter = cls(model, target.vocab)
        first = target.draft_vocabulary
        if first is None and model.vocab >= LARGE:
            first = FIRST
        # a model that was given may serve others too
        if first is not None and cls.limits_head and model is not source:
            from foreword.draft.vocabulary import DraftVocabulary  # few need it

            drafter.draft_vocabulary = DraftVocabulary(model, first, target.eos)
        return drafter

    def release(self, request: Request) -> None:
        super().release(request)
        self._memories.pop(request.id, None)

    def reach(self, batch: Batch, request: Request) -> int:
        """Return the useful depth of a draft: 0 after a source that cannot be read."""
        fits = (
            not self._reads_source(request) or len(request.source) <= self.model.context
        )
        return super().reach(batch, request) if fits else 0

    def begin(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> None:
        if self.draft_vocabulary is not None:
            self.draft_vocabulary.limit(texts=not batch.draws.wants_probs)

    def remember(self, request: Request, tree: DraftTree) -> None:
        self._memories[request.id].remember(tree)

    def logits(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        logits = self.draft_model.read(reads)
        if self.draft_vocabulary is not None:
            logits = self.draft_vocabulary.over(logits, self._vocab)
        return F.pad(logits, (0, self._vocab - logits.shape[1]), value=-math.inf)

    def prefill(self, request: Request) -> Read:
        """Read what was committed since the last draft; return the Read of its end."""
        memory = self._memories.get(request.id)
        known = 0 if memory is None else memory.length
        if memory is None:
            held = self.model.open(
                request.id, capacity(request), request.tokens, request.params.tenant
            )
            if self._reads_source(request):
                self.model.give(request.id, request.encoder_input)
            memory = self._memories[request.id] = _Memory(held)
        if self.draft_vocabulary is not None:
            self.draft_vocabulary.read(request.tokens[known:])
        start = memory.length
        path = memory.settle(request.tokens)
        if path != list(range(len(path))):
            self.model.move(request.id, [start + place for place in path], start)
        past = memory.length
        end = catch_up(
            request.id,
            past,
            request.tokens[past:],
            lambda read: self.model.read([read]),
        )
        memory.length = len(request.tokens)
        return end

    def _reads_source(self, request: Request) -> bool:
        """Return whether the draft model encodes the source; others read the answer."""
        return bool(request.encoder_input) and self.model.seq2seq is not None
