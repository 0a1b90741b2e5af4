"""Token-level intersection: a smaller model with another tokenizer drafts in shared
tokens (Timor et al. 2025).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.cross_vocab.pairing import VocabularyPair, load_pair
from foreword.draft.cross_vocab.token_map import TokenMap
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import ModelError
from foreword.model import Model, Tokenizer
from foreword.model.backend import Backend
from foreword.model.kv.memories import Remembers
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Read
from foreword.registry import OWN_METHODS
from foreword.types.growth import GrownTree, TreeRequest

MARGIN = 256
"""Draft ids reserved beyond a sequence for draft tokens."""
ENDLESS = 2**31


def translated(model: Model, translation: TokenMap) -> Model:
    """Return the model in the target's vocabulary; of long texts it reads the end."""
    view = copy.copy(model)
    view.backend = RemappedBackend(
        model.backend, translation, model.context, model.device
    )
    view.vocab, view.context = len(translation.spellings), ENDLESS
    return view


@dataclass(slots=True)
class _Text:
    """One sequence in the draft model's ids."""

    room: int
    ids: list[int] = field(default_factory=list)
    """Draft ids of the text, including draft tokens that were read as a chain."""
    ends: list[int] = field(default_factory=lambda: [0])
    """ends[i] = number of draft ids of the first i target tokens."""
    begin: int = 0
    """Ids dropped from the start of the text, because the model's context is short."""
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    """Draft ids of each node of the tree that was read after the text."""


class RemappedBackend(Remembers):
    """Backend that reads each target token as one or more draft ids, and returns logits
    of target ids.

    Logits of tokens that are not shared are -inf, so softmax(logits) is q given a
    shared token. Each target token has a fixed spelling in draft ids, whatever
    surrounds it, so a draft tree stays a tree.
    """

    def __init__(
        self,
        backend: Backend,
        translation: TokenMap,
        context: int,
        device: torch.device,
    ) -> None:
        self.mode, self.copies = backend.mode, backend.copies
        self._backend, self._context = backend, context
        self._spellings = translation.spellings
        self._to_target: list[int] = translation.to_target.tolist()
        self._drafts, self._targets = (ids.to(device) for ids in translation.shared)
        self._texts: dict[int, _Text] = {}
        # by draft id; the number of target tokens where none has it
        images = translation.to_target
        self._images = images.where(images >= 0, len(self._spellings)).int()

    @property
    def pool(self) -> PagePool | None:
        return self._backend.pool

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        text = self._texts[id] = _Text(min(self._context, capacity + MARGIN))
        spelt = [self._spellings[token] for token in tokens]
        draft_ids = list(chain.from_iterable(spelt))
        held = self._backend.open(id, text.room, draft_ids, tenant, layers)
        ends = accumulate(map(len, spelt))
        known = [ids for ids, end in zip(spelt, ends, strict=True) if end <= held]
        self._append(text, known)
        return len(text.ends) - 1

    def close(self, id: int) -> None:
        self._texts.pop(id, None)
        self._backend.close(id)

    def read(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "kept vocab"]:
        logits = self._backend.read([self._in_draft_ids(read) for read in reads])
        lengths: list[int] = []
        for read in reads:
            last = read.tokens[len(read.tokens) - read.keep :]
            lengths += [len(self._spellings[token]) for token in last]
        # a token's logits follow the last of its draft ids
        rows = [end - 1 for end in accumulate(lengths)]
        if len(rows) < logits.shape[0]:
            logits = logits[rows]
        remapped = logits.new_full((len(rows), len(self._spellings)), -math.inf)
        remapped[:, self._targets] = logits[:, self._drafts]
        return remapped

    def move(self, id: int, source: list[int], start: int) -> None:
        text = self._texts[id]
        length = len(text.ends) - 1
        if start < length:
            return  # draft tokens of a chain are in place already
        end = len(text.ids) - text.begin
        stops = list(accumulate(map(len, text.nodes), initial=end))
        nodes = [position - length for position in source]
        rows = [row for node in nodes for row in range(stops[node], stops[node + 1])]
        self._backend.move(id, rows, end)
        self._append(text, [text.nodes[node] for node in nodes])
        text.nodes = []

    def _in_draft_ids(self, read: Read) -> Read:
        """Return the read in draft ids, and store its text for a second reading."""
        text, parents = self._texts[read.id], read.parents
        spelt = [self._spellings[token] for token in read.tokens]
        first_chain = (
            len(spelt) if parents is None else len(spelt) + read.held - len(parents)
        )
        # An accepted branch that is in place already.
        accepted = text.nodes[: max(0, read.past + 1 - len(text.ends))]
        self._append(text, accepted)
        del text.ends[read.past + 1 :], text.ids[text.ends[-1] :]
        start = len(text.ids)
        self._append(text, spelt[:first_chain])
        text.nodes[read.held :] = spelt[first_chain:]
        self._make_room(read, start)
        return Read(
            read.id,
            max(start, text.begin) - text.begin,
            list(chain.from_iterable(spelt))[max(0, text.begin - start) :],
            None if parents is None else _parents(parents, text.nodes),
            keep=sum(map(len, spelt[len(spelt) - read.keep :])),
            held=sum(map(len, text.nodes[: read.held])),
        )

    @staticmethod
    def _append(
        text: _Text,
        spelt: Sequence[tuple[int, ...]],
    ) -> None:
        for ids in spelt:
            text.ids += ids
            text.ends.append(len(text.ids))

    def _make_room(self, read: Read, start: int) -> None:
        """Enlarge the room of a sequence that outgrows it; if it outgrows the context,
        drop its beginning.
        """
        text = self._texts[read.id]
        spare = min(MARGIN, self._context // 2)
        size = len(text.ids) + sum(map(len, text.nodes))
        whole = size + (0 if read.held else spare)
        if text.begin <= start and whole - text.begin <= text.room:
            return
        if read.held:
            raise ModelError(
                f"cannot read the draft tree of sequence {read.id}: it outgrew its "
                f"room of {text.room} draft ids. Lower the budget"
            )
        text.begin = size - (self._context - spare) // 2 if whole > self._context else 0
        text.room = min(self._context, 2 * (whole - text.begin))
        self._backend.close(read.id)
        self._backend.open(read.id, text.room)
        if text.begin < start:
            self._backend.read([Read(read.id, 0, text.ids[text.begin : start], keep=0)])

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Read the end of a text, then grow a tree of shared tokens after it; None
        where the backend grows none.
        """
        grow = getattr(self._backend, "grow", None)
        if grow is None:
            return None
        ends = tuple(self._spellings[token][-1] for token in ask.ends)
        ask = replace(ask, ends=ends, ids=self._images, target=len(self._spellings))
        # the logits of the last draft id, which may be one of several of its token
        end = replace(self._in_draft_ids(read), keep=1)
        grown: GrownTree = grow(end, ask)
        self._texts[read.id].nodes = [(token,) for token in grown.read]
        children = [
            self._shared_children(tokens, values) for tokens, values in grown.children
        ]
        return replace(
            grown,
            tokens=[self._to_target[token] for token in grown.tokens],
            read=[self._to_target[token] for token in grown.read],
            children=children,
        )

    def _shared_children(
        self, tokens: list[int], values: list[float]
    ) -> tuple[list[int], list[float]]:
        """Return the children that are shared, in target ids."""
        shared = [
            (self._to_target[token], value)
            for token, value in zip(tokens, values, strict=True)
        ]
        shared = [(token, value) for token, value in shared if token >= 0]
        return [token for token, _ in shared], [value for _, value in shared]


def _parents(
    parents: Sequence[int],
    nodes: Sequence[tuple[int, ...]],
) -> list[int]:
    """Return the parents of a tree in which a node of several draft ids has become a
    chain of them.
    """
    last, expanded = {-1: -1}, []
    for node, (parent, ids) in enumerate(zip(parents, nodes, strict=True)):
        expanded += [last[parent], *range(len(expanded), len(expanded) + len(ids) - 1)]
        last[node] = len(expanded) - 1
    return expanded


class IntersectionDrafter(LanguageModelDrafter):
    """Drafter with q'(x) = q(x) / q(shared) on shared tokens, else 0 (arXiv 2502.05202,
    algorithm 4).

    q' is sampled and verified like any other q, so every rule is exact with it at every
    temperature.
    """

    about = OWN_METHODS["tli"]

    def __init__(self, pair: VocabularyPair) -> None:
        super().__init__(translated(pair.model, pair.translation))
        self.quantizable = None  # `load_pair` has quantized it
        self.vocabulary = pair.translation.shared[1]

    @classmethod
    def load(
        cls,
        source: Source,
        target: Model,
        tokenizer: Tokenizer | None,
    ) -> "IntersectionDrafter":
        return cls(load_pair(source, target, tokenizer))
