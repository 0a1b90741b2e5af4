"""Records of an encoder-decoder as tokens: a source, then what the decoder reads and writes."""

from __future__ import annotations

from typing import cast

from foreword.errors import InvalidRequest
from foreword.model import Tokenizer
from foreword.train.data.packing import Encoder, Piece
from foreword.train.data.records import ANSWERS, Record


class PairEncoder(Encoder):
    """Tokenizer of (source, answer) records. A piece is the source, the decoder's first tokens, and the answer."""

    def __init__(self, tokenizer: Tokenizer, eos: frozenset[int], start: tuple[int, ...], length: int) -> None:
        """`start` are the ids that the decoder reads before an answer.

        A piece longer than `length` loses the end of its answer, to half the length, then that of its source.
        """
        super().__init__(tokenizer, eos)
        self.start, self.length = start, length

    def __call__(self, record: Record) -> Piece:
        """Encode a record. Raises InvalidRequest where it is not one source and one answer."""
        source = self.prompt(record)
        answer = self.tokenizer(text_target=record.turns[-1][1], add_special_tokens=False)["input_ids"]
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
    """Return the tokens of a record's source: its messages in the chat template, or one message without a template.

    Raises InvalidRequest where the record is not one source and at most one answer.
    """
    check_pair(record)
    before = [message for message in record.messages if message["role"] != ANSWERS]
    if tokenizer.chat_template:
        text = cast(str, tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True))
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(before) > 1:
        raise InvalidRequest(
            "cannot encode a record with several messages before its answer: the target has no chat template. "
            "Give one message as the source"
        )
    return list(tokenizer(before[0]["content"])["input_ids"])


def check_pair(record: Record) -> None:
    """Raise InvalidRequest unless a record is for an encoder-decoder: a source, then at most one answer."""
    roles = [role for role, _ in record.turns]
    if not roles or roles[0] == ANSWERS or ANSWERS in roles[:-1]:
        raise InvalidRequest(
            f"cannot use the record {record.opening[:40]!r}: an encoder-decoder learns one answer to one source. Give "
            f'{{"messages": [{{"role": "user", …}}, {{"role": "{ANSWERS}", …}}]}}'
        )
