"""A smaller model with any tokenizer writes ahead, and its text is put into the target's tokens (Timor et al. 2025).

Knows texts as bytes and two vocabularies; knows nothing about the target's model.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import MODEL, Drafter, Source, chosen
from foreword.draft.pairing import Pair, introduce
from foreword.model import Model, Read, Tokenizer
from foreword.sampling import draw, weights
from foreword.types import Batch, Draft, Sequence

BACK = 16
"""Tokens before a border that are put into tokens again with what follows: far more than a tokenizer looks back."""


@dataclass(slots=True)
class _Retelling:
    """One text in draft ids, spelt as the draft's own tokenizer spells it."""

    ids: list[int] = field(default_factory=list)
    heard: int = 0
    """Target tokens that `ids` tell."""
    settled: int = 0
    """Draft ids that what follows cannot change any more."""
    read: list[int] = field(default_factory=list)
    """What the draft model holds, guesses included."""
    room: int = 0


@dataclass(slots=True)
class _Writing:
    """What the draft model writes ahead of one text in one round."""

    read: Read
    most: int
    written: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """The same in target tokens, each draft token by itself: about where the next one will stand."""


class RetellingDrafter(Drafter):
    """String-level exact match (arXiv 2502.05202, algorithm 2): guesses are chosen tokens, so every rule is exact.

    Under a rule that shares its noise the draft model draws with the noise of the target token that its own token
    begins with, which guesses better than its likeliest token; under the others it writes its likeliest.
    """

    summary = "a smaller model with any tokenizer writes ahead, its text is re-tokenised"
    takes, needs = MODEL, True

    def __init__(self, pair: Pair) -> None:
        self.model, self._pair = pair.model, pair
        nothing = [len(pair.target.pieces)]
        begins = [(self._spelt(token) or nothing)[0] for token in range(len(pair.draft.pieces))]
        self._begins = torch.tensor(begins, device=pair.model.device)
        self._tellings: dict[int, _Retelling] = {}

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> RetellingDrafter:
        return cls(introduce(source, target, tokenizer))

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        writings: dict[int, _Writing] = {}
        for row, (sequence, budget) in enumerate(zip(batch.sequences, nodes, strict=True)):
            most = min(budget, batch.reach(sequence))
            telling = self._listen(sequence) if most else _Retelling()
            if telling.ids and len(telling.ids) + most <= self.model.context:
                writings[row] = _Writing(self._catch_up(sequence.id, telling, most), most)
        going = writings
        while going:
            logits = self.model.read([writing.read for writing in going.values()])
            for (row, writing), scores in zip(going.items(), logits, strict=True):
                self._write(batch, row, writing, scores)
            going = {row: writing for row, writing in going.items() if writing.read.tokens}
        return chosen(
            [
                self._guess(sequence, writings[row]) if row in writings else []
                for row, sequence in enumerate(batch.sequences)
            ]
        )

    def release(self, sequence: Sequence) -> None:
        self.model.close(sequence.id)
        self._tellings.pop(sequence.id, None)

    # ---- listen

    def _listen(self, sequence: Sequence) -> _Retelling:
        """Tell what was committed since the last call in draft ids, together with the last ids before it."""
        telling, ours, theirs = (
            self._tellings.setdefault(sequence.id, _Retelling()),
            self._pair.target,
            self._pair.draft,
        )
        fresh = b""
        for token in sequence.tokens[telling.heard :]:
            if not ours.special(token):
                fresh += ours.text([token])
                continue
            self._tell(telling, fresh)
            telling.ids += self._pair.translation.spellings[token]
            telling.settled, fresh = len(telling.ids), b""
        self._tell(telling, fresh)
        telling.heard = len(sequence.tokens)
        behind = max(telling.settled, len(telling.ids) - BACK)
        while behind < len(telling.ids) and not _begins_character(theirs.text(telling.ids[behind : behind + 1])):
            behind += 1
        telling.settled = behind
        return telling

    def _tell(self, telling: _Retelling, fresh: bytes) -> None:
        if fresh:
            theirs = self._pair.draft
            open_ = theirs.text(telling.ids[telling.settled :])
            telling.ids[telling.settled :] = theirs.follow(b"", open_ + fresh)

    def _catch_up(self, id: int, telling: _Retelling, most: int) -> Read:
        """What the draft model must read to know the text, and be asked what follows."""
        need = len(telling.ids) + most
        if need > telling.room:
            telling.room, telling.read = min(2 * need, self.model.context), []
            self.model.close(id)
            self.model.open(id, telling.room)
        past = 0
        for held, wanted in zip(telling.read, telling.ids[:-1], strict=False):
            if held != wanted:
                break
            past += 1
        telling.read = list(telling.ids)
        return Read(id, past, telling.ids[past:])

    # ---- write

    def _write(self, batch: Batch, row: int, writing: _Writing, logits: Float[Tensor, "vocab"]) -> None:
        """Choose the draft model's next token and have it read, unless enough is written."""
        read, token = writing.read, self._choose(batch, row, writing, logits)
        tokens = [] if token is None else [token]
        writing.written += tokens
        writing.path += [spelt for token in tokens for spelt in self._spelt(token)]
        enough = max(len(writing.path), len(writing.written)) >= writing.most
        if enough or any(map(self._pair.draft.special, tokens)):
            tokens = []
        writing.read = Read(read.id, read.past + len(read.tokens), tokens)
        self._tellings[read.id].read += tokens

    def _choose(self, batch: Batch, row: int, writing: _Writing, logits: Float[Tensor, "vocab"]) -> int | None:
        """The next draft token: first the target token that it begins with, then the likeliest one that does.

        The target's law at a place is met by the draft's law of which target token comes first. None where the
        request's own processors refuse.
        """
        sequence = batch.sequences[row]
        law = logits.float().softmax(-1)
        first = law.new_zeros(len(self._pair.target.pieces) + 1).index_add_(0, self._begins, law)[:-1]
        try:
            scores = weights(first.log()[None], sequence, [writing.path])
        except Exception:  # noqa: BLE001 - a processor is not ours; the guess ends here
            return None
        if batch.stops is not None and batch.stops(sequence, len(writing.path), scores[0]):
            return None
        noise = None if batch.draws.wants_probs else batch.draws.drafting(sequence, len(writing.path))
        token = draw(scores, None if noise is None else noise[None])
        return int(law.masked_fill(self._begins != token, -1.0).argmax())

    def _spelt(self, token: int) -> list[int]:
        """A draft token by itself in target tokens; nothing where it stands for nothing the target knows."""
        image = int(self._pair.translation.to_target[token])
        return [image] if image >= 0 else self._pair.target.spell(self._pair.draft.text([token]))

    # ---- guess

    def _guess(self, sequence: Sequence, writing: _Writing) -> list[int]:
        """What was written, in the tokens that the target's tokenizer gives it after the end of the text."""
        ours, theirs = self._pair.target, self._pair.draft
        ends = [place for place, token in enumerate(writing.written) if theirs.special(token)]
        last = self._spelt(writing.written[ends[0]]) if ends else []
        before = b""
        for token in sequence.tokens[-BACK:]:
            before = b"" if ours.special(token) else before + ours.text([token])
        text = theirs.text(writing.written[: ends[0]] if ends else writing.written)
        return [*ours.follow(before, text), *last][: writing.most]


def _begins_character(text: bytes) -> bool:
    """UTF-8 marks the bytes inside a character."""
    return not text or text[0] & 0xC0 != 0x80
