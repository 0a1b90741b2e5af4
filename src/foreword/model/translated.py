"""A model of another vocabulary, driven in the target's token ids: it hears translations and scores what both can say.

Knows drivers and translations; knows nothing about drafting or text. After Timor et al. 2025 (arXiv 2502.05202).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.driver import Driver, Growing
from foreword.model.model import Model
from foreword.model.plan import Read
from foreword.model.translation import Translation
from foreword.native.tree import Ask, Grown

MARGIN = 256
"""Draft tokens beyond the text that guesses may take."""
ENDLESS = 2**31


def translated(model: Model, translation: Translation) -> Model:
    """The same model in the target's vocabulary. It can follow a text of any length: of a long one it reads the end."""
    view = copy.copy(model)
    fast = isinstance(model.driver, Growing)
    kind = FastTranslator if fast else TranslatingDriver
    view.driver = kind(model.driver, translation, model.context, model.device)
    view.vocab, view.context = len(translation.spellings), ENDLESS
    return view


@dataclass(slots=True)
class _Text:
    """One sequence as the draft model has it."""

    room: int
    ids: list[int] = field(default_factory=list)
    """The text, guesses that were read as a chain included, in draft ids."""
    ends: list[int] = field(default_factory=lambda: [0])
    """ends[i] = draft ids that say the first i target tokens."""
    begin: int = 0
    """Ids at the head of the text that the model has forgotten, because its context is short."""
    nodes: list[tuple[int, ...]] = field(default_factory=list)
    """Draft ids of each node of the tree that was read after the text."""


class TranslatingDriver:
    """Reads each target token as one or more draft tokens; logits come back as the target's, -inf where not shared.

    So softmax(logits) is the draft's law given that it says a shared token. Every target token ends at a draft token of
    its own, and what it is spelt with depends on nothing else, so a tree of guesses stays a tree.
    """

    def __init__(self, driver: Driver, translation: Translation, context: int, device: torch.device) -> None:
        self.mode, self.copies = driver.mode, driver.copies
        self._driver, self._context = driver, context
        self._spellings = translation.spellings
        self._to_target: list[int] = translation.to_target.tolist()
        self._drafts, self._targets = (ids.to(device) for ids in translation.shared)
        self._texts: dict[int, _Text] = {}
        # For draft ids: where a target's row holds what belongs to them, and -inf for those that no target token has.
        self._source = translation.to_target.clamp(min=0).to(device)
        self._mask = torch.where(translation.to_target < 0, -math.inf, 0.0).to(device)

    def open(self, id: int, capacity: int) -> None:
        text = self._texts[id] = _Text(min(self._context, capacity + MARGIN))
        self._driver.open(id, text.room)

    def close(self, id: int) -> None:
        self._texts.pop(id, None)
        self._driver.close(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        logits = self._driver.read([self._told(read) for read in reads])
        kept = (token for read in reads for token in read.tokens[len(read.tokens) - read.keep :])
        rows = [end - 1 for end in accumulate(len(self._spellings[token]) for token in kept)]
        if len(rows) < logits.shape[0]:
            logits = logits[rows]
        said = logits.new_full((len(rows), len(self._spellings)), -math.inf)
        said[:, self._targets] = logits[:, self._drafts]
        return said

    def move(self, id: int, source: list[int], start: int) -> None:
        text = self._texts[id]
        known = len(text.ends) - 1
        if start < known:
            return  # guesses of a chain lie where the text goes on
        stops = list(accumulate((len(node) for node in text.nodes), initial=len(text.ids) - text.begin))
        kept = [place - known for place in source]
        rows = [row for node in kept for row in range(stops[node], stops[node + 1])]
        self._driver.move(id, rows, len(text.ids) - text.begin)
        self._append(text, [text.nodes[node] for node in kept])
        text.nodes = []

    def _told(self, read: Read) -> Read:
        """The same read in draft ids; its text is kept, for the model may have to read it again."""
        text, parents = self._texts[read.id], read.parents
        spelt = [self._spellings[token] for token in read.tokens]
        trunk = len(spelt) if parents is None else len(spelt) + read.held - len(parents)
        self._append(text, text.nodes[: max(0, read.past + 1 - len(text.ends))])  # a branch that lay where it should
        del text.ends[read.past + 1 :], text.ids[text.ends[-1] :]
        start = len(text.ids)
        self._append(text, spelt[:trunk])
        text.nodes[read.held :] = spelt[trunk:]
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
    def _append(text: _Text, spelt: List[tuple[int, ...]]) -> None:
        for ids in spelt:
            text.ids += ids
            text.ends.append(len(text.ids))

    def _make_room(self, read: Read, start: int) -> None:
        """Give a text that outgrows its room a larger one; of one that outgrows the context, forget the beginning."""
        text = self._texts[read.id]
        spare = min(MARGIN, self._context // 2)
        size = len(text.ids) + sum(map(len, text.nodes))
        whole = size + (0 if read.held else spare)
        if text.begin <= start and whole - text.begin <= text.room:
            return
        if read.held:
            raise ModelError(f"a tree of guesses after sequence {read.id} outgrew its room of {text.room} draft tokens")
        text.begin = size - (self._context - spare) // 2 if whole > self._context else 0
        text.room = min(self._context, 2 * (whole - text.begin))
        self._driver.close(read.id)
        self._driver.open(read.id, text.room)
        if text.begin < start:
            self._driver.read([Read(read.id, 0, text.ids[text.begin : start], keep=0)])


class FastTranslator(TranslatingDriver):
    """The same over a driver that grows trees by itself: noise of -inf keeps it to shared tokens."""

    def grow(self, read: Read, ask: Ask) -> Grown:
        """Read the end of a text, then grow a tree of shared tokens after it."""
        ends = tuple(self._spellings[token][-1] for token in ask.ends)
        ask = replace(ask, noise=self._heard(ask.noise, ask.deep), ends=ends)
        grown = cast("Growing", self._driver).grow(self._end(read), ask)
        self._texts[read.id].nodes = [(token,) for token in grown.read]
        return replace(
            grown,
            tokens=[self._to_target[token] for token in grown.tokens],
            read=[self._to_target[token] for token in grown.read],
            children=[self._said(tokens, values) for tokens, values in grown.children],
        )

    def _end(self, read: Read) -> Read:
        """The last target token may be several of the draft's, and only what follows all of them is asked for."""
        return replace(self._told(read), keep=1)

    def _heard(self, noise: Float[Tensor, "count target_vocab"] | None, count: int) -> Float[Tensor, "count vocab"]:
        mask = self._mask.expand(count, -1)
        return mask if noise is None else noise.index_select(1, self._source).add_(mask)

    def _said(self, tokens: list[int], values: list[float]) -> tuple[list[int], list[float]]:
        """The children that are shared, in target ids."""
        shared = [(self._to_target[token], value) for token, value in zip(tokens, values, strict=True)]
        shared = [(token, value) for token, value in shared if token >= 0]
        return [token for token, _ in shared], [value for _, value in shared]


def _parents(parents: List[int], nodes: List[tuple[int, ...]]) -> list[int]:
    """Parents of a tree in which a guess of several draft ids has become a chain of them."""
    last, found = {-1: -1}, []
    for node, (parent, ids) in enumerate(zip(parents, nodes, strict=True)):
        found += [last[parent], *range(len(found), len(found) + len(ids) - 1)]
        last[node] = len(found) - 1
    return found
