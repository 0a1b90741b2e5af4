"""The target's own answers: in order, and the same file after any interruptions."""

import json
from functools import cache

import pytest

from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest
from foreword.registry import PLAIN
from foreword_train.data.records import Record, read
from foreword_train.data.regenerate import Wishes, regenerate

WISHES = Wishes(temperature=1.0, max_tokens=12, batch=2, seed=3)
RECORDS = [
    Record(
        turns=(("user", "Define the word tea."), ("assistant", "x")), source="words"
    ),
    Record(
        text=(
            "Rivers carry water from the mountains to the sea and rain carries it back "
            "again."
        )
    ),
    Record(
        turns=(
            ("user", "What is 2 plus 3?"),
            ("assistant", "5"),
            ("user", "And 4 plus 4?"),
            ("assistant", "8"),
        )
    ),
    Record(turns=(("user", "Translate to German: Good morning."),)),
    Record(turns=(("user", "word " * 1100), ("assistant", "y"))),
]


@cache
def llm() -> LLM:
    return LLM(method=PLAIN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "answers.jsonl"
    tally = regenerate(llm(), RECORDS, out, WISHES)
    return out, tally


def lines(out) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_fitting_records_are_answered_in_order(whole):
    out, tally = whole
    assert [line["record"] for line in lines(out)] == [0, 1, 2, 3]
    assert (tally.records, tally.kept, tally.skipped) == (5, 0, 1)
    assert tally.cut == sum(line.get("cut", False) for line in lines(out))
    assert lines(out)[0]["source"] == "words"


@pytest.mark.parametrize("number", [0, 3])
def test_answer_follows_the_seed_of_the_record(whole, number):
    line = lines(whole[0])[number]
    prompt = llm().render(RECORDS[number].messages[:1])
    params = SamplingParams(
        temperature=1.0, max_tokens=12, seed=(3 << 32) + 64 * number
    )
    answer = llm().generate([prompt], params)[0]
    assert line["messages"][1] == {"role": "assistant", "content": answer.text}
    assert line.get("cut", False) is (answer.finish_reason == "length")


def test_later_answers_follow_the_new_ones(tmp_path):
    out = tmp_path / "out.jsonl"
    wishes = Wishes(temperature=0.0, max_tokens=300, batch=1)
    greetings = (
        "Translate to German: Good morning.",
        "Translate to German: Thank you.",
    )
    turns = tuple(
        turn
        for greeting in greetings
        for turn in (("user", greeting), ("assistant", "?"))
    )
    regenerate(llm(), [Record(turns=turns)], out, wishes)
    messages = lines(out)[0]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    answer = llm().generate(
        [llm().render(messages[:3])], SamplingParams(temperature=0, max_tokens=300)
    )[0]
    assert messages[3]["content"] == answer.text


def test_cut_answer_ends_the_conversation(tmp_path):
    out = tmp_path / "out.jsonl"
    regenerate(llm(), RECORDS[2:3], out, Wishes(temperature=0.0, max_tokens=1))
    (line,) = lines(out)
    assert line["cut"] is True
    assert len(line["messages"]) == 2


def test_text_keeps_its_first_quarter(whole):
    line = lines(whole[0])[1]
    assert line["text"].startswith("Rivers carry water")
    assert line["text"] != RECORDS[1].text


def test_answers_can_be_read_as_records(whole):
    found = read([whole[0]])
    assert len(found) == 4
    assert [record.opening[:20] for record in found if record.turns] == [
        RECORDS[number].opening[:20] for number in (0, 2, 3)
    ]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.55, 0.99])
def test_interrupted_run_resumes_to_the_same_file(whole, tmp_path, share):
    written = whole[0].read_bytes()
    out = tmp_path / "out.jsonl"
    out.write_bytes(written[: int(share * len(written))])
    tally = regenerate(llm(), RECORDS, out, WISHES)
    assert out.read_bytes() == written
    assert tally.kept == written[: int(share * len(written))].count(b"\n")


def test_other_file_is_not_extended(whole, tmp_path):
    with pytest.raises(InvalidRequest, match="other settings"):
        regenerate(llm(), RECORDS, whole[0], Wishes(temperature=0.5, max_tokens=12))
    with pytest.raises(InvalidRequest, match="other records"):
        regenerate(llm(), RECORDS[::-1], whole[0], WISHES)
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "something"}\n')
    with pytest.raises(InvalidRequest, match="something else"):
        regenerate(llm(), RECORDS, other, WISHES)
    assert other.read_text() == '{"text": "something"}\n'
