"""String-level exact match: a smaller model's text, re-tokenised for the target, as
draft (Timor et al. 2025).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter, Source, chosen
from foreword.draft.cross_vocab.pairing import VocabularyPair, load_pair
from foreword.model import Model, Read, Tokenizer
from foreword.registry import OWN_METHODS
from foreword.sampling.draw import draw
from foreword.sampling.logits import weights
from foreword.types import Batch, Draft, Request

BACK = 16
"""Tokens before a boundary that are re-tokenised with what follows: far more than a
tokenizer's context.
"""


@dataclass(slots=True)
class _Copy:
    """One text in draft ids, as the draft's own tokenizer encodes it."""

    ids: list[int] = field(default_factory=list)
    translated: int = 0
    """Target tokens that `ids` stand for."""
    settled: int = 0
    """Draft ids that later text cannot change."""
    read: list[int] = field(default_factory=list)
    """Ids in the draft model's cache, including draft tokens."""
    room: int = 0
    tenant: str = ""


@dataclass(slots=True)
class _Path:
    """The draft model's continuation of one text in one round."""

    read: Read
    most: int
    written: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """The same in target tokens, each draft id translated alone: the approximate
    position of the next.
    """


class StringMatchDrafter(Drafter):
    """Drafter by string-level exact match (arXiv 2502.05202, algorithm 2); tokens are
    chosen, so every rule is exact.

    Under a rule that shares its noise, the draft model samples with the noise of the
    target token that its own token begins with, which is accepted more often than its
    likeliest token. Under other rules it takes its likeliest.
    """

    about = OWN_METHODS["slem"]

    def __init__(self, pair: VocabularyPair) -> None:
        self.model, self._pair = pair.model, pair
        nothing = [len(pair.target.pieces)]
        begins = [
            (self._spelt(token) or nothing)[0]
            for token in range(len(pair.draft.pieces))
        ]
        self._begins = torch.tensor(begins, device=pair.model.device)
        self._copies: dict[int, _Copy] = {}

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "StringMatchDrafter":
        return cls(load_pair(source, target, tokenizer))

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        paths: dict[int, _Path] = {}
        for row, (request, budget) in enumerate(
            zip(batch.requests, nodes, strict=True)
        ):
            most = min(budget, batch.reach(request))
            copy = self._translate(request) if most else _Copy()
            if copy.ids and len(copy.ids) + most <= self.model.context:
                paths[row] = _Path(self._catch_up(request.id, copy, most), most)
        running = paths
        while running:
            logits = self.model.read([path.read for path in running.values()])
            for (row, path), scores in zip(running.items(), logits, strict=True):
                self._write(batch, row, path, scores)
            running = {row: path for row, path in running.items() if path.read.tokens}
        tokens = [
            self._propose(request, paths[row]) if row in paths else []
            for row, request in enumerate(batch.requests)
        ]
        return chosen(tokens)

    def release(self, request: Request) -> None:
        self.model.close(request.id)
        self._copies.pop(request.id, None)

    # ---- translate

    def _translate(self, request: Request) -> _Copy:
        """Add what was committed since the last call in draft ids, re-encoding the last
        ids before it.
        """
        copy = self._copies.setdefault(request.id, _Copy(tenant=request.params.tenant))
        ours = self._pair.target
        theirs = self._pair.draft
        fresh = b""
        for token in request.tokens[copy.translated :]:
            if not ours.special(token):
                fresh += ours.text([token])
                continue
            self._append(copy, fresh)
            copy.ids += self._pair.translation.spellings[token]
            copy.settled, fresh = len(copy.ids), b""
        self._append(copy, fresh)
        copy.translated = len(request.tokens)
        behind = max(copy.settled, len(copy.ids) - BACK)
        while behind < len(copy.ids) and not _begins_character(
            theirs.text(copy.ids[behind : behind + 1])
        ):
            behind += 1
        copy.settled = behind
        return copy

    def _append(self, copy: _Copy, fresh: bytes) -> None:
        if fresh:
            theirs = self._pair.draft
            open_ = theirs.text(copy.ids[copy.settled :])
            copy.ids[copy.settled :] = theirs.follow(b"", open_ + fresh)

    def _catch_up(self, id: int, copy: _Copy, most: int) -> Read:
        """Return the draft model's next read: its ids that are not in its cache yet."""
        need = len(copy.ids) + most
        if need > copy.room:
            copy.room = min(2 * need, self.model.context)
            copy.read = copy.ids[
                : self.model.open(id, copy.room, copy.ids, copy.tenant)
            ]
        past = 0
        for held, current in zip(copy.read, copy.ids[:-1], strict=False):
            if held != current:
                break
            past += 1
        copy.read = list(copy.ids)
        return Read(id, past, copy.ids[past:])

    # ---- write

    def _write(
        self, batch: Batch, row: int, path: _Path, logits: Float[Tensor, "vocab"]
    ) -> None:
        """Choose the draft model's next token; queue it for reading if more is due."""
        read, token = path.read, self._choose(batch, row, path, logits)
        tokens = [] if token is None else [token]
        path.written += tokens
        path.path += [spelt for token in tokens for spelt in self._spelt(token)]
        enough = max(len(path.path), len(path.written)) >= path.most
        if enough or any(map(self._pair.draft.special, tokens)):
            tokens = []
        path.read = Read(read.id, read.past + len(read.tokens), tokens)
        self._copies[read.id].read += tokens

    def _choose(
        self,
        batch: Batch,
        row: int,
        path: _Path,
        logits: Float[Tensor, "vocab"],
    ) -> int | None:
        """Return the next draft id: choose the target token it begins with, then the
        likeliest id that does.

        The choice uses the draft's distribution over first target tokens. None if the
        request's own processors fail, or the budget ends the chain.
        """
        request = batch.requests[row]
        distribution = logits.float().softmax(-1)
        first = distribution.new_zeros(len(self._pair.target.pieces) + 1).index_add_(
            0, self._begins, distribution
        )[:-1]
        try:
            scores = weights(first.log()[None], request, [path.path])
        except Exception:  # noqa: BLE001 - a user's processor; the draft ends here
            return None
        if batch.stops is not None and batch.stops(request, len(path.path), scores[0]):
            return None
        noise = (
            None
            if batch.draws.wants_probs
            else batch.draws.drafting(request, path.path)
        )
        token = draw(scores, None if noise is None else noise[None])
        return int(distribution.masked_fill(self._begins != token, -1.0).argmax())

    def _spelt(self, token: int) -> list[int]:
        """Return the target tokens of one draft id alone; empty if there are none."""
        image = int(self._pair.translation.to_target[token])
        return (
            [image]
            if image >= 0
            else self._pair.target.spell(self._pair.draft.text([token]))
        )

    # ---- propose

    def _propose(self, request: Request, path: _Path) -> list[int]:
        """Return the continuation in the tokens that the target's tokenizer gives it
        after the end of the text.
        """
        ours, theirs = self._pair.target, self._pair.draft
        ends = [
            place for place, token in enumerate(path.written) if theirs.special(token)
        ]
        last = self._spelt(path.written[ends[0]]) if ends else []
        before = b""
        for token in request.tokens[-BACK:]:
            before = b"" if ours.special(token) else before + ours.text([token])
        text = theirs.text(path.written[: ends[0]] if ends else path.written)
        return [*ours.follow(before, text), *last][: path.most]


def _begins_character(text: bytes) -> bool:
    """Return whether the text starts at a character, by the marks of UTF-8."""
    return not text or text[0] & 0xC0 != 0x80
