"""Records as tokens, packed into blocks of fixed length: which tokens are learnt, and
the order of the blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import Tokenizer
from foreword_train.data.records import Record


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one record, and which of them are training targets."""

    tokens: list[int]
    learnt: list[bool]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Block:
    """Pieces side by side, padded; each is read alone, with positions from 0."""

    tokens: Int[Tensor, "*batch length"]
    positions: Int[Tensor, "*batch length"]
    learnt: Bool[Tensor, "*batch length"]
    """True for a training target that has a token before it in its piece."""

    @classmethod
    def of(cls, pieces: Sequence[Piece], length: int) -> "Block":
        """Return one block of pieces that fit; padding is a piece without loss."""
        rest = length - sum(map(len, pieces))
        padding = [Piece([0] * rest, [False] * rest)] if rest else []
        positions = torch.cat(
            [torch.arange(len(piece)) for piece in (*pieces, *padding)]
        )
        tokens = [token for piece in (*pieces, *padding) for token in piece.tokens]
        learnt = torch.tensor(
            [flag for piece in (*pieces, *padding) for flag in piece.learnt],
            dtype=torch.bool,
        )
        return cls(torch.tensor(tokens), positions, learnt & (positions > 0))

    @property
    def pieces(self) -> list[Piece]:
        """The pieces of a single block, except those with nothing to learn."""
        starts = [
            *torch.nonzero(self.positions == 0).flatten().tolist(),
            len(self.tokens),
        ]
        spans = [slice(start, end) for start, end in pairwise(starts)]
        cut = [
            Piece(self.tokens[span].tolist(), self.learnt[span].tolist())
            for span in spans
        ]
        return [piece for piece in cut if any(piece.learnt)]

    def to(self, device: torch.device) -> "Block":
        """Return the block on a device."""
        return Block(
            self.tokens.to(device), self.positions.to(device), self.learnt.to(device)
        )


def stack(blocks: Sequence[Block]) -> Block:
    """Stack blocks of one length along a new first dimension."""
    return Block(
        torch.stack([block.tokens for block in blocks]),
        torch.stack([block.positions for block in blocks]),
        torch.stack([block.learnt for block in blocks]),
    )


class Encoder:
    """Tokenizer of records, in the form that the target reads when it serves."""

    def __init__(self, tokenizer: Tokenizer, eos: frozenset[int]) -> None:
        """`eos` ends a text; tokens that a template puts after it are never learnt."""
        if not tokenizer.is_fast:
            raise InvalidRequest(
                "cannot find the answers in a text: the tokenizer is slow. Use a fast "
                "one, with tokenizer.json"
            )
        self.tokenizer, self.eos = tokenizer, eos

    def __call__(self, record: Record) -> Piece:
        """Encode a record. InvalidRequest if it needs a template and has none."""
        return self._conversation(record) if record.turns else self._text(record)

    def prompt(self, record: Record) -> list[int]:
        """Return the tokens before the first answer; of a text, its first quarter."""
        if not record.turns:
            tokens = self._text(record).tokens
            return tokens[: max(1, len(tokens) // 4)]
        first = next(iter(record.answers), None)
        before = record.messages[:first]
        return self._ids(self._render(before, generate=True))

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _text(self, record: Record) -> Piece:
        tokens: list[int] = self.tokenizer(record.text)["input_ids"]
        if self.eos and not record.cut and tokens[-1:] and tokens[-1] not in self.eos:
            tokens = [*tokens, min(self.eos)]
        return Piece(tokens, [True] * len(tokens))

    def _conversation(self, record: Record) -> Piece:
        messages = record.messages
        text = self._render(messages, generate=False)
        encoding = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )
        tokens = encoding["input_ids"]
        starts = [start for start, _ in encoding["offset_mapping"]]
        learnt = [False] * len(tokens)
        for index in record.answers:
            begin = self._render(messages[:index], generate=True)
            end = self._render(messages[: index + 1], generate=False)
            # Some templates rewrite earlier turns once later ones come; such turns are
            # not learnt.
            if text.startswith(begin) and text.startswith(end):
                self._learn(tokens, starts, learnt, (len(begin), len(end)))
        if record.cut and True in learnt:
            last = len(learnt) - learnt[::-1].index(True)
            last -= tokens[last - 1] in self.eos
            tokens, learnt = tokens[:last], learnt[:last]
        return Piece(tokens, learnt)

    def _learn(
        self,
        tokens: list[int],
        starts: list[int],
        learnt: list[bool],
        span: tuple[int, int],
    ) -> None:
        """Mark the tokens that begin in a span of text, up to the first end."""
        for index, start in enumerate(starts):
            if span[0] <= start < span[1]:
                learnt[index] = True
                if tokens[index] in self.eos:
                    return

    def _render(self, messages: list[dict[str, str]], *, generate: bool) -> str:
        if not self.tokenizer.chat_template:
            raise InvalidRequest(
                "cannot train on messages: the target has no chat template. Give "
                "records with text instead"
            )
        return cast(
            str,
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate
            ),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Place in the data where a block begins: all that a run must save of the data."""

    epoch: int = 0
    record: int = 0
    """Index in the order of the epoch."""
    offset: int = 0
    """Tokens of that record in earlier blocks."""


class Packer:
    """Stream of blocks, reshuffled every epoch; a function of the place alone, so a run
    can resume anywhere.

    A record that does not fit beside others goes to the next block; one longer than a
    block is cut into several.
    """

    def __init__(
        self,
        encode: Callable[[Record], Piece],
        records: Sequence[Record],
        length: int,
        seed: int = 0,
    ) -> None:
        self.encode = encode
        self.records = records
        self.length = length
        self.seed = seed
        self._order: tuple[int, list[int]] = (-1, [])
        self._last: tuple[int, Piece] = (-1, Piece([], []))

    def next(self, start: Place) -> tuple[Block, Place]:
        """Return the block that begins at `start`, and the place of the next one."""
        pieces: list[Piece] = []
        room = self.length
        while True:
            whole = self._piece(start)
            rest = len(whole) - start.offset
            if rest > room and pieces:
                break
            taken = slice(start.offset, start.offset + min(rest, room))
            pieces.append(Piece(whole.tokens[taken], whole.learnt[taken]))
            room -= taken.stop - taken.start
            start = self._after(start, taken.stop, len(whole))
            if not room or start.record == 0:  # a block never spans two epochs
                break
        return Block.of(pieces, self.length), start

    def all(self, most: int) -> list[Block]:
        """Return at most `most` blocks of one epoch."""
        blocks: list[Block] = []
        start = Place()
        while start.epoch == 0 and len(blocks) < most:
            block, start = self.next(start)
            blocks.append(block)
        return blocks

    def _piece(self, start: Place) -> Piece:
        if self._order[0] != start.epoch:
            generator = torch.Generator().manual_seed(
                self.seed * 1_000_003 + start.epoch
            )
            self._order = (
                start.epoch,
                torch.randperm(len(self.records), generator=generator).tolist(),
            )
        number = self._order[1][start.record]
        # a record that did not fit comes first in the next block
        if self._last[0] != number:
            self._last = (number, self.encode(self.records[number]))
        return self._last[1]

    def _after(self, start: Place, offset: int, length: int) -> Place:
        if offset < length:
            return Place(start.epoch, start.record, offset)
        last = start.record + 1 == len(self.records)
        return Place(start.epoch + 1) if last else Place(start.epoch, start.record + 1)
