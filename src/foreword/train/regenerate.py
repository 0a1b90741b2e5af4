"""Answers said again by the target itself, in our own engine: what a draft should learn is what its target says.

Knows records and the LLM; knows nothing about training. One line for each record, so a killed run goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from foreword.errors import InvalidRequest
from foreword.llm import LLM
from foreword.params import SamplingParams, whole
from foreword.train.data import ANSWERS, Record
from foreword.types import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How the answers are drawn."""

    temperature: float = 1.0
    max_tokens: int = 256
    """Longer answers are cut, and marked so that their end is not learnt."""
    batch: int = 32
    """Records that are answered together, and written together."""
    seed: int = 0
    """Answer n has its seed from this and n, so a run that was interrupted says the same."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch"):
            whole(1)(name, getattr(self, name))
        whole(0, 2**31)("seed", self.seed)


@dataclass(slots=True)
class Tally:
    """What became of the records."""

    records: int = 0
    """Looked at, those of an earlier run included."""
    kept: int = 0
    """Of an earlier run."""
    tokens: int = 0
    """Written by the target in this run."""
    cut: int = 0
    """Records that end in an answer that was not over at max_tokens."""
    skipped: int = 0
    """Records too long for the target's context, or answered with nothing at all."""


def regenerate(
    llm: LLM, records: List[Record], out: Path, wishes: Wishes, progress: Callable[[Tally], None] = lambda _: None
) -> Tally:
    """Write every record again with the target's own answers, one line each, after those that `out` holds already.

    Every turn of the assistant is said anew, after the answers said before it; a conversation without one gets one at
    its end, and a text is continued from its first quarter. What company a record is answered in changes nothing.
    Raises InvalidRequest when `out` holds answers to other records, or said otherwise.
    """
    # Of a folder the end of its path: where it lies on this machine concerns nobody.
    by = {"target": "/".join(Path(llm.target.name).parts[-2:]), **asdict(wishes)}
    del by["batch"]
    first = _resume(out, records, by)
    tally = Tally(records=first, kept=first)
    while tally.records < len(records):
        numbers = range(tally.records, min(tally.records + wishes.batch, len(records)))
        said = _answer(llm, {number: records[number] for number in numbers}, wishes, tally)
        with out.open("a", encoding="utf-8") as file:
            file.writelines(
                _line(record, {"record": number, "asked": _digest(records[number]), "by": by})
                for number, record in said.items()
            )
        tally.records = numbers.stop
        progress(tally)
    return tally


def _answer(llm: LLM, records: dict[int, Record], wishes: Wishes, tally: Tally) -> dict[int, Record]:
    """The records with new answers, turn by turn, all of them together; without those that cannot be answered."""
    said, cut = dict(records), set[int]()
    for turn in range(max(len(_spots(record)) for record in records.values())):
        asked: dict[int, list[int]] = {}
        params: list[SamplingParams] = []
        for number, spots in ((n, _spots(records[n])) for n in list(said) if n not in cut):
            if turn >= len(spots):
                continue
            ids = _prompt(llm, said[number], spots[turn])
            room = min(wishes.max_tokens, llm.target.context - len(ids))
            if room < 1:
                del said[number]
                continue
            asked[number] = ids
            seed = (wishes.seed << 32) + 64 * number + turn
            params.append(SamplingParams(temperature=wishes.temperature, max_tokens=room, seed=seed))
        for number, answer in zip(asked, llm.generate(list(asked.values()), params), strict=True):
            if answer.finish_reason == "length":
                cut.add(number)
            spot = _spots(records[number])[turn]
            said[number] = _with(llm, said[number], spot, answer, number in cut)
            tally.tokens += len(answer.tokens)
    said = {number: record for number, record in said.items() if _says_something(record)}
    tally.cut += len(cut & said.keys())
    tally.skipped += len(records) - len(said)
    return said


def _spots(record: Record) -> list[int]:
    """Where the answers stand among the turns; where the only one goes, if there is none yet."""
    return [place for place, (role, _) in enumerate(record.turns) if role == ANSWERS] or [len(record.turns)]


def _prompt(llm: LLM, record: Record, spot: int) -> list[int]:
    if record.turns:
        return llm.render(record.messages[:spot])
    ids: list[int] = llm.tokenizer(record.text)["input_ids"]
    return ids[: max(1, len(ids) // 4)]


def _with(llm: LLM, record: Record, spot: int, answer: Completion, cut: bool) -> Record:
    """The record with this answer, and without what came after one that was cut: nobody replies to half an answer."""
    if not record.turns:
        begin = cast(str, llm.tokenizer.decode(answer.prompt_tokens, skip_special_tokens=True))
        return replace(record, text=begin + answer.text, cut=cut)
    after = () if cut else record.turns[spot + 1 :]
    return replace(record, turns=(*record.turns[:spot], (ANSWERS, answer.text), *after), cut=cut)


def _says_something(record: Record) -> bool:
    return bool(record.text) or any(role == ANSWERS and content for role, content in record.turns)


def _digest(record: Record) -> str:
    return blake2b(repr(record).encode(), digest_size=8).hexdigest()


def _line(record: Record, about: dict[str, Any]) -> str:
    said: dict[str, Any] = {"messages": record.messages} if record.turns else {"text": record.text}
    if record.cut:
        said["cut"] = True
    return json.dumps(said | {"source": record.source} | about, ensure_ascii=False) + "\n"


def _resume(out: Path, records: List[Record], by: dict[str, Any]) -> int:
    """How many records `out` deals with already. A last line that was not finished is removed."""
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
        number, asked, said = last["record"], last["asked"], last["by"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{out} holds something else than regenerated answers; give another file") from error
    if said != by:
        raise InvalidRequest(f"{out} holds answers that were drawn otherwise ({said}); give another file")
    if number >= len(records) or asked != _digest(records[number]):
        raise InvalidRequest(f"{out} holds answers to other records; give another file")
    return number + 1
