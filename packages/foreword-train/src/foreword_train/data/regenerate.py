"""Regeneration of answers by the target, since a draft should learn the target's own
output.

One line is written per record, so an interrupted run resumes where it was.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from foreword.api.llm import LLM
from foreword.chats.prompts import ids_of
from foreword.checks import whole
from foreword.errors import InvalidRequest
from foreword.types import Completion
from foreword.types.params import SamplingParams
from foreword_train.data.pairs import source_of
from foreword_train.data.records import ANSWERS, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Sampling of the answers."""

    temperature: float = 1.0
    max_tokens: int = 256
    """Longer answers are cut, and marked so that their end is not learnt."""
    batch: int = 16
    """Records answered and written together."""
    seed: int = 0
    """Answer n derives its seed from this and n, so a resumed run writes the same."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch"):
            whole(1)(name, getattr(self, name))
        whole(0, 2**31)("seed", self.seed)


@dataclass(slots=True)
class Tally:
    """Counts of a regeneration."""

    records: int = 0
    """Records processed, including the records of an earlier run."""
    kept: int = 0
    """Records of an earlier run."""
    tokens: int = 0
    """Tokens written by the target in this run."""
    cut: int = 0
    """Records that end in an answer cut at max_tokens."""
    skipped: int = 0
    """Records too long for the target's context, or with empty answers."""


def regenerate(
    llm: LLM,
    records: Sequence[Record],
    out: Path,
    options: Wishes,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Write every record with the target's own answers, one line each, after the lines
    that `out` holds already.

    Every turn of the assistant is regenerated, after the new answers before it; a
    conversation without one gets one at its end, and a text is continued from its first
    quarter. The other records of a batch do not affect an answer. Raises InvalidRequest
    when `out` holds answers to other records, or with other settings.
    """
    # Only the end of a folder's path: its place on this machine does not matter.
    by = {"target": "/".join(Path(llm.target.name).parts[-2:]), **asdict(options)}
    del by["batch"]
    first = _resume(out, records, by)
    tally = Tally(records=first, kept=first)
    while tally.records < len(records):
        numbers = range(tally.records, min(tally.records + options.batch, len(records)))
        batch = {number: records[number] for number in numbers}
        answered = _answer(llm, batch, options, tally, progress)
        with out.open("a", encoding="utf-8") as file:
            file.writelines(
                _line(
                    record,
                    {"record": number, "asked": _digest(records[number]), "by": by},
                )
                for number, record in answered.items()
            )
        tally.records = numbers.stop
        progress(tally)
    return tally


def _answer(
    llm: LLM,
    records: dict[int, Record],
    options: Wishes,
    tally: Tally,
    progress: Callable[[Tally], None],
) -> dict[int, Record]:
    """Return the records with new answers, turn by turn, as one batch, without
    records that cannot be answered.
    """
    answered, cut = dict(records), set[int]()
    for turn in range(max(len(_spots(record)) for record in records.values())):
        prompts: dict[int, list[int]] = {}
        params: list[SamplingParams] = []
        for number, spots in (
            (n, _spots(records[n])) for n in list(answered) if n not in cut
        ):
            if turn >= len(spots):
                continue
            ids = _prompt(llm, answered[number], spots[turn])
            # an encoder reads the prompt in a context of its own
            rules = llm.target.seq2seq
            room = min(
                options.max_tokens,
                llm.target.context - len(ids if rules is None else rules.start),
            )
            if room < 1:
                del answered[number]
                continue
            prompts[number] = ids
            seed = (options.seed << 32) + 64 * number + turn
            params.append(
                SamplingParams(
                    temperature=options.temperature, max_tokens=room, seed=seed
                )
            )
        answers = _answers(llm, prompts.values(), params)
        for number, answer in zip(prompts, answers, strict=True):
            if answer.finish_reason == "length":
                cut.add(number)
            spot = _spots(records[number])[turn]
            answered[number] = _with(llm, answered[number], spot, answer, number in cut)
            tally.tokens += len(answer.tokens)
            progress(tally)
    answered = {
        number: record
        for number, record in answered.items()
        if record.text or record.is_answered
    }
    tally.cut += len(cut & answered.keys())
    tally.skipped += len(records) - len(answered)
    return answered


def _answers(
    llm: LLM, prompts: Iterable[list[int]], params: Iterable[SamplingParams]
) -> Iterator[Completion]:
    """Answer prompts together; yield the answers in their order as they end."""
    session = llm.session
    pairs = zip(prompts, params, strict=True)
    return session.completions(
        [request for pair in pairs for request in session.prepare(*pair)]
    )


def _spots(record: Record) -> list[int]:
    """Return the indices of the answers among the turns; the end without any."""
    return record.answers or [len(record.turns)]


def _prompt(llm: LLM, record: Record, spot: int) -> list[int]:
    if llm.target.seq2seq is not None:
        return source_of(llm.tokenizer, record)
    if record.turns:
        return ids_of(llm.render(record.messages[:spot]))
    ids: list[int] = llm.tokenizer(record.text)["input_ids"]
    return ids[: max(1, len(ids) // 4)]


def _with(llm: LLM, record: Record, spot: int, answer: Completion, cut: bool) -> Record:
    """Return the record with this answer, and without the turns after a cut one, which
    reply to a complete answer.
    """
    if not record.turns:
        begin = cast(
            str, llm.tokenizer.decode(answer.prompt_tokens, skip_special_tokens=True)
        )
        return replace(record, text=begin + answer.text, cut=cut)
    after = () if cut else record.turns[spot + 1 :]
    return replace(
        record, turns=(*record.turns[:spot], (ANSWERS, answer.text), *after), cut=cut
    )


def _digest(record: Record) -> str:
    return blake2b(repr(record).encode(), digest_size=8).hexdigest()


def _line(record: Record, about: dict[str, Any]) -> str:
    fields: dict[str, Any] = (
        {"messages": record.messages} if record.turns else {"text": record.text}
    )
    if record.cut:
        fields["cut"] = True
    return (
        json.dumps(fields | {"source": record.source} | about, ensure_ascii=False)
        + "\n"
    )


def _resume(out: Path, records: Sequence[Record], by: dict[str, Any]) -> int:
    """Return how many records `out` covers; remove an unfinished last line."""
    if not out.exists():
        return 0
    written = out.read_bytes()
    whole_lines = written[: written.rfind(b"\n") + 1]
    if len(whole_lines) < len(written):
        with out.open("r+b") as file:
            file.truncate(len(whole_lines))
    if not whole_lines:
        return 0
    try:
        last = json.loads(whole_lines.splitlines()[-1])
        number = last["record"]
        digest = last["asked"]
        settings = last["by"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"cannot append to {out}: it holds something else than regenerated "
            "answers. Choose another file"
        ) from error
    if settings != by:
        raise InvalidRequest(
            f"cannot append to {out}: its answers have other settings ({settings}). "
            "Choose another file"
        )
    if number >= len(records) or digest != _digest(records[number]):
        raise InvalidRequest(
            f"cannot append to {out}: it holds answers to other records. Choose "
            "another file"
        )
    return number + 1
