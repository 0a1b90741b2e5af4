"""Records of an encoder-decoder as tokens: a source, then what the decoder reads and
writes; and inputs of models.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foreword.errors import InvalidRequest
from foreword.model import Tokenizer
from foreword_train.data.packing import Block, Encoder, Piece
from foreword_train.data.records import ANSWERS, Record


class PairEncoder(Encoder):
    """Tokenizer of (source, answer) records; the decoder's first tokens between."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: frozenset[int],
        start: tuple[int, ...],
        length: int,
    ) -> None:
        """`start` are the ids that the decoder reads before an answer.

        A piece longer than `length` loses the end of its answer, to half the length,
        then that of its source.
        """
        super().__init__(tokenizer, eos)
        self.start, self.length = start, length

    def __call__(self, record: Record) -> Piece:
        """Encode a record. Raises InvalidRequest unless it is source and answer."""
        source = self.prompt(record)
        answer = self.tokenizer(
            text_target=record.turns[-1][1], add_special_tokens=False
        )["input_ids"]
        if self.eos and not record.cut:
            answer = [*answer, min(self.eos)]
        room = self.length - len(self.start)
        answer = answer[: max(room // 2, room - len(source))]
        read = [*source[: room - len(answer)], *self.start]
        return Piece([*read, *answer], [False] * len(read) + [True] * len(answer))

    def prompt(self, record: Record) -> list[int]:
        """Return the tokens of the source."""
        return source_of(self.tokenizer, record)


def source_of(tokenizer: Tokenizer, record: Record) -> list[int]:
    """Return the tokens of a record's source: its messages in the chat template, or one
    message without a template.

    Raises InvalidRequest where the record is not one source and at most one answer.
    """
    check_pair(record)
    before = [message for message in record.messages if message["role"] != ANSWERS]
    if tokenizer.chat_template:
        text = cast(
            str,
            tokenizer.apply_chat_template(
                before, tokenize=False, add_generation_prompt=True
            ),
        )
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(before) > 1:
        raise InvalidRequest(
            "cannot encode a record with several messages before its answer: the "
            "target has no chat template. "
            "Give one message as the source"
        )
    return list(tokenizer(before[0]["content"])["input_ids"])


def check_pair(record: Record) -> None:
    """Raise InvalidRequest unless a record is a source, then at most one answer."""
    roles = [role for role, _ in record.turns]
    if not roles or roles[0] == ANSWERS or ANSWERS in roles[:-1]:
        raise InvalidRequest(
            f"cannot use the record {record.opening[:40]!r}: an encoder-decoder learns "
            "one answer to one source. Give "
            f'{{"messages": [{{"role": "user", …}}, {{"role": "{ANSWERS}", …}}]}}'
        )


def forward_inputs(blocks: Block, start: int) -> tuple[dict[str, Any], Block]:
    """Return the inputs of a forward over stacked blocks, and the tokens that its
    logits and hidden states belong to.

    `start` is the number of tokens that the decoder of an encoder-decoder reads before
    an answer; its rows are the pieces of a PairEncoder, padded. It is 0 for a
    decoder-only model, which reads the blocks as they are.
    """
    if not start:
        # Positions that restart at 0 tell transformers where a record ends: no record
        # sees another.
        return {
            "input_ids": blocks.tokens,
            "position_ids": blocks.positions,
            "use_cache": False,
        }, blocks
    rows = zip(blocks.tokens, blocks.positions, blocks.learnt, strict=True)
    pieces = [piece for row in rows for piece in Block(*row).pieces]
    ends = [piece.learnt.index(True) - start for piece in pieces]
    sources = _padded(
        [piece.tokens[:end] for piece, end in zip(pieces, ends, strict=True)]
    )
    seen = _padded([[1] * end for end in ends])
    tokens = _padded(
        [piece.tokens[end:] for piece, end in zip(pieces, ends, strict=True)]
    )
    learnt = _padded(
        [piece.learnt[end:] for piece, end in zip(pieces, ends, strict=True)]
    ).bool()
    device = blocks.tokens.device
    texts = Block(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), learnt).to(
        device
    )
    inputs = {
        "input_ids": sources.to(device),
        "attention_mask": seen.to(device),
        "decoder_input_ids": texts.tokens,
    }
    return inputs | {"use_cache": False}, texts


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence(
        [torch.tensor(row, dtype=torch.int64) for row in rows], batch_first=True
    )
