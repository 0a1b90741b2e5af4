"""An entry that fails is left out, with its reason; the others do not notice."""

import pytest

import starter
from foreword.budget import FixedBudget
from foreword.draft.none import NoDrafter
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import ModelError
from foreword.model import Model, load_tokenizer
from foreword.verify import rule
from foreword_lab.bench.engine_entry import EngineEntry
from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.lineup import PLAIN_ROW, Lineup
from foreword_lab.bench.oracle import Oracle
from foreword_lab.bench.race import Race, rotated
from foreword_lab.bench.records import BenchRequest, EntryFailed, Trial
from foreword_lab.bench.run import Options, run

TOKENIZER = load_tokenizer(starter.target())
REQUESTS = [
    BenchRequest(name, (1, 5, 9, 2), 0.0, 0, 4) for name in ("first", "second", "third")
]


class OtherEntry:
    """Another engine's entry: it answers, except for one request."""

    def __init__(
        self, name: str, error: Exception | None = None, at: str = "second"
    ) -> None:
        self.name, self._error, self._at = name, error, at

    def run(self, request: BenchRequest) -> Trial:
        if self._error is not None and request.name == self._at:
            raise self._error
        return Trial([1, 2], 0.01, None)


def race(*entries: OtherEntry, progress: list[str]) -> tuple[Race, Exclusions]:
    out = Exclusions(progress.append, needed=PLAIN_ROW)
    return Race(Lineup(entries, Oracle(8), TOKENIZER, 64), out), out


def test_failing_entry_is_left_out_and_others_go_on():
    lines: list[str] = []
    failing = OtherEntry("theirs", RuntimeError("no such kernel\nsecond line"))
    contest, out = race(
        OtherEntry(PLAIN_ROW), failing, OtherEntry("third"), progress=lines
    )
    for turn, request in enumerate(REQUESTS):
        contest.run(request, turn)
    assert {name for name, _ in contest.results} == {PLAIN_ROW, "third"}
    assert all(
        set(kept) == {"first", "second", "third"} for kept in contest.results.values()
    )
    assert out.reasons == {"theirs": "RuntimeError: no such kernel"}
    assert lines == ["theirs is left out: RuntimeError: no such kernel"]


def test_our_own_errors_are_shown_without_their_class():
    contest, out = race(
        OtherEntry(PLAIN_ROW),
        OtherEntry("ours", EntryFailed("it is too long")),
        progress=[],
    )
    contest.run(REQUESTS[1], 0)
    assert out.reasons == {"ours": "it is too long"}


def test_warm_up_excludes_but_keeps_no_trial():
    contest, out = race(
        OtherEntry(PLAIN_ROW),
        OtherEntry("theirs", ValueError(), at="first"),
        progress=[],
    )
    contest.run(REQUESTS[0], 0, counts=False)
    assert contest.results == {}
    assert out.reasons == {"theirs": "ValueError"}


def test_failure_of_plain_decoding_ends_the_run():
    contest, _ = race(
        OtherEntry(PLAIN_ROW, ModelError("too big")), OtherEntry("theirs"), progress=[]
    )
    with pytest.raises(ModelError, match="too big"):
        contest.run(REQUESTS[1], 0)


def test_each_turn_begins_with_another_entry():
    orders = ["".join(rotated("abc", turn)) for turn in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_entries_that_cannot_be_loaded_are_reported():
    lines: list[str] = []
    options = Options(
        target=str(starter.target()),
        draft="./no-such-draft",
        methods=("lm", "transformers.assisted"),
        temperatures=(0.0,),
        limit_prompts=1,
        max_tokens=4,
    )
    report = run(options, lines.append)
    assert set(report.exclusions) == {"lm", "transformers.assisted"}
    assert all("no-such-draft" in why for why in report.exclusions.values())
    assert [row.name for row in report.rows] == [PLAIN_ROW, "transformers.generate"]
    assert report.as_json()["exclusions"] == report.exclusions
    assert sum("is left out: " in line for line in lines) == 2
    assert "left out: lm (" in str(report.table().caption)


def test_target_answers_the_next_entry_after_a_failure():
    target = Model.load(starter.target())
    engines = [
        Engine(target, NoDrafter(), rule("match"), FixedBudget(0), Scheduler(slots=1))
        for _ in range(2)
    ]
    broken, sound = (
        EngineEntry(name, engine, TOKENIZER)
        for name, engine in zip("ab", engines, strict=True)
    )
    before = sound.run(REQUESTS[0]).tokens

    def verify(*_: object) -> None:
        raise RuntimeError("out of memory")

    engines[0].default.verifier.verify = verify  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            broken.run(REQUESTS[0])
        assert engines[0].idle
    assert sound.run(REQUESTS[0]).tokens == before
