"""Recordings: real ones follow the schema and come back; others are refused by name."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import foreword
import starter
from foreword import LLM, AsyncLLM, Completion, InvalidRequest, SamplingParams
from foreword.recording import SCHEMA, Machine, Recording, Totals
from foreword.recording.reading import LATER
from foreword.types.round import AddedToken, DraftToken, Round, Undrafted

PROMPT = "one two three four five one two three four five one two three"
REQUESTS = {
    "lm": {"temperature": 0.8, "seed": 2, "nodes": 5, "top_p": 0.9},
    "ngram": {
        "temperature": 0.0,
        "seed": 0,
        "nodes": 5,
        "stop": ("nothing like this",),
        "logit_bias": {5: 1.0},
    },
    "lm by block": {"temperature": 0.8, "seed": 1, "nodes": 4, "rule": "block"},
    "lm with a budget": {"temperature": 0.0, "seed": 9},
    "none": {"temperature": 1.0, "seed": 4},
}


@cache
def llm() -> LLM:
    return LLM(starter.target(), draft=starter.draft(), chunk=8)


def params(name: str = "lm", **more: object) -> SamplingParams:
    values = {"method": name.split()[0], "max_tokens": 16}
    values |= {"ignore_eos": True, "trace": True}
    return SamplingParams(**(values | REQUESTS[name] | more))


@cache
def completion(name: str = "lm") -> Completion:
    return llm().generate(PROMPT, params(name))[0]


@cache
def recording(name: str = "lm") -> Recording:
    return Recording.of(llm(), params(name), completion(name))


@cache
def schema() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", REQUESTS)
def test_recording_follows_the_schema_and_round_trips(name, tmp_path):
    one, file = recording(name), tmp_path / "answer.json"
    one.write(file)
    schema().validate(json.loads(file.read_text(encoding="utf-8")))
    assert Recording.read(file) == one
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_recording_says_what_the_completion_says(name):
    one, stats = recording(name), completion(name).stats
    plain = llm().generate(PROMPT, params(name, trace=False))[0]
    assert plain.rounds is None
    assert completion(name).tokens == plain.tokens == one.tokens
    assert (one.answer, one.seed) == (plain.text, plain.seed)
    assert one.finish_reason == plain.finish_reason
    pieces = [piece for round_ in one.rounds for piece in round_.pieces]
    assert "".join(pieces) == one.answer
    assert (list(one.prompt_tokens), one.prompt) == (plain.prompt_tokens, PROMPT)
    assert (one.model, one.method) == ("starter/target", name.split()[0])
    assert one.rule == (params(name).rule or "match")
    assert one.library == foreword.__version__
    assert one.totals.tokens == 16
    for count in ("rounds", "drafted", "accepted", "undrafted"):
        assert getattr(one.totals, count) == getattr(stats, count)
    if params(name).nodes is not None:
        assert one.budget == f"nodes={params(name).nodes}"
        assert stats.accepted > 0


def test_parameters_are_plain_and_only_those_that_differ():
    def quiet(text, scores):
        return scores

    given = params("ngram", processors=(quiet,), n=1)
    one = Recording.of(llm(), given, llm().generate(PROMPT, given)[0])
    assert one.params == {
        "temperature": 0.0,
        "stop": ["nothing like this"],
        "logit_bias": {"5": 1.0},
        "max_tokens": 16,
        "ignore_eos": True,
        "processors": ["quiet"],
    }
    schema().validate(json.loads(one.as_json()))


def test_known_costs_give_the_pace_of_plain_decoding():
    assert recording("lm with a budget").budget == "adaptive"
    assert recording("lm with a budget").totals.plain_tokens_per_second > 0
    assert recording("lm").totals.plain_tokens_per_second is None


def test_an_answer_without_rounds_cannot_be_recorded():
    untraced = params(trace=False, max_tokens=2)
    with pytest.raises(InvalidRequest, match="answer: its rounds were not traced"):
        Recording.of(llm(), untraced, llm().generate(PROMPT, untraced)[0])


def test_asyncio_traces_too():
    async def answers():
        async with AsyncLLM(llm()) as loop:
            streamed = [delta.round async for delta in loop.stream(PROMPT, params())]
            return streamed, (await loop.generate(PROMPT, params()))[0]

    streamed, whole = asyncio.run(answers())
    for rounds in (streamed, whole.rounds):
        assert [token for one in rounds for token in one.tokens] == recording().tokens
        assert sum(len(one.accepted) for one in rounds) > 0
    assert Recording.of(llm(), params(), whole).answer == recording().answer


def test_the_schema_has_every_field_of_every_type():
    definitions = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    for kind in (Recording, Machine, Totals, Round, DraftToken, AddedToken, Undrafted):
        names = {field.name for field in fields(kind)}
        assert definitions[kind.__name__]["properties"].keys() == names
        names -= LATER.get(kind.__name__, set())
        assert sorted(definitions[kind.__name__]["required"]) == sorted(names)
        assert definitions[kind.__name__]["additionalProperties"] is False


def places(value: Any, *before: str | int) -> list[tuple[str | int, ...]]:
    """Every place in plain values: names and numbers from the top; one item a list."""
    found = [before] if before else []
    if isinstance(value, dict) and before[-1:] not in (("params",), ("undrafted",)):
        below = [places(inner, *before, name) for name, inner in value.items()]
        return found + [place for one in below for place in one]
    if isinstance(value, list) and value:
        return found + places(value[0], *before, 0)
    return found


PLACES = """
version library model method rule budget params seed prompt_tokens prompt_tokens.0
prompt answer finish_reason machine machine.cpu machine.threads rounds rounds.0
rounds.0.draft rounds.0.draft.0 rounds.0.draft.0.token rounds.0.draft.0.text
rounds.0.draft.0.parent rounds.0.draft.0.draft_prob rounds.0.draft.0.target_prob
rounds.0.accepted rounds.0.added rounds.0.added.token rounds.0.added.text
rounds.0.added.target_prob rounds.0.added.kind rounds.0.budget rounds.0.rows
rounds.0.prompt_rows rounds.0.sequences rounds.0.prefill_tokens rounds.0.prefill_ms
rounds.0.propose_ms rounds.0.score_ms rounds.0.verify_ms rounds.0.commit_ms
rounds.0.pieces rounds.0.pieces.0 rounds.0.method rounds.0.speeds totals totals.rounds totals.tokens totals.drafted
totals.accepted totals.tokens_per_pass totals.acceptance totals.seconds
totals.plain_tokens_per_second totals.undrafted
""".split()


def changed(place: str, change: Callable[[Any, Any], None]) -> str:
    """The recording as JSON after a change to the value at the end of a path."""
    values = json.loads(recording("lm").as_json())
    *path, last = (int(name) if name.isdigit() else name for name in place.split("."))
    change(reduce(lambda inner, name: inner[name], path, values), last)
    return json.dumps(values)


def refused(text: str | bytes) -> str:
    with pytest.raises(InvalidRequest) as error:
        Recording.from_json(text, "FILE")
    assert str(error.value).startswith("cannot open FILE: ")
    return str(error.value)


def test_the_places_are_all_there_are():
    values = json.loads(recording("lm").as_json())
    found = {".".join(map(str, place)) for place in places(values)}
    varying = ("rounds.0.accepted.", "rounds.0.undrafted")
    assert {one for one in found if not one.startswith(varying)} == {*PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_a_value_of_another_type_is_refused_and_named(place):
    def spoil(holder, name):
        holder[name] = True

    text, named = changed(place, spoil), place.replace(".0", "[0]")
    assert named in refused(text)
    assert not schema().is_valid(json.loads(text))


@pytest.mark.parametrize(
    "place",
    [place for place in PLACES if not place.endswith((".0", "0.method", ".speeds"))],
)
def test_missing_and_unknown_values_are_named(place):
    def leave_out(holder, name):
        del holder[name]

    def add(holder, name):
        holder[f"{name}_too"] = 1

    name = place.rpartition(".")[2]
    for change, words in (
        (leave_out, f"lacks {name!r}"),
        (add, f"has unknown '{name}_too'"),
    ):
        text = changed(place, change)
        assert words in refused(text)
        assert not schema().is_valid(json.loads(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON: Expecting value at line 1, column 1"),
        ("{", "it is not JSON"),
        ("[]", "the recording must be an object, got []"),
        ("null", "the recording must be an object, got None"),
        (b"\xff\xfe", "it is not"),
        (b'{"version": 1, "answer": "\xe9"}', "it is not UTF-8 text"),
        ('{"version": NaN}', "NaN is not a JSON number"),
        ('{"version": 2}', "it has version 2, and this library reads version 1"),
        ("[" * 100_000, "it is not JSON that can be read"),
        ("1" * 10_000, "it is not JSON that can be read"),
    ],
)
def test_what_is_no_recording_is_refused(text, words):
    assert words in refused(text)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("rounds.0.draft.0.parent", 0, "must come before it, or be -1, got 0"),
        ("rounds.0.draft.0.parent", -2, "parent must come before it"),
        ("rounds.0.accepted", [64], "must be a path of the draft tree, got [64]"),
        ("rounds.0.accepted", [1, 0], "rounds[0].accepted must be a path"),
        ("rounds.0.pieces", ["a"] * 60, "rounds[0].pieces must be at most"),
        ("rounds.0.draft", [], "rounds[0]."),
        ("rounds.0.propose_ms", 1e999, "Infinity is not a JSON number"),
        ("rounds.0.added.kind", "gift", "one of 'bonus', 'correction', 'plain'"),
    ],
)
def test_rounds_that_cannot_have_been_are_refused(place, value, words):
    def put(holder, name):
        holder[name] = value

    assert words in refused(changed(place, put))


def test_files_that_are_not_there_are_named(tmp_path):
    for place, words in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InvalidRequest, match=f"cannot open {place}: {words}"):
            Recording.read(place)
    with pytest.raises(InvalidRequest, match="cannot write"):
        recording().write(tmp_path / "none" / "answer.json")


def test_a_number_that_json_has_not_is_not_written():
    totals = replace(recording().totals, seconds=float("inf"))
    with pytest.raises(ValueError, match="JSON"):
        replace(recording(), totals=totals).as_json()


def test_reading_imports_no_torch(tmp_path):
    recording().write(tmp_path / "answer.json")
    code = (
        "import sys; from foreword.recording import Recording\n"
        f"print(Recording.read({str(tmp_path / 'answer.json')!r}).answer, 'torch' in "
        "sys.modules)"
    )
    source = str(Path(foreword.__file__).parents[1])
    options = dict(env={"PYTHONPATH": source, "PYTHONUTF8": "1"})
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, check=True, **options)
    assert found.stdout == f"{recording().answer} False\n"
