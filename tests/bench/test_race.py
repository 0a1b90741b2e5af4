"""One contender that fails is left out, with its reason; the others are measured as if
it had never been there.
"""

import pytest

import starter
from foreword.bench.engine_entry import EngineEntry
from foreword.bench.exclusions import Exclusions
from foreword.bench.lineup import PLAIN_ROW, Lineup
from foreword.bench.oracle import Oracle
from foreword.bench.race import Race
from foreword.bench.records import Request, Trial
from foreword.bench.run import Options, run
from foreword.budget import FixedBudget
from foreword.draft.none import NoDrafter
from foreword.engine import Engine
from foreword.errors import DraftError, ModelError
from foreword.model import Model, load_tokenizer
from foreword.scheduler import Scheduler
from foreword.verify import rule

ASKED = [
    Request(name, (1, 5, 9, 2), 0.0, 0, 4) for name in ("first", "second", "third")
]


class Stranger:
    """Somebody else's engine: it answers, until it does not."""

    def __init__(
        self, name: str, error: Exception | None = None, at: str = "second"
    ) -> None:
        self.name, self._error, self._at = name, error, at

    def run(self, request: Request) -> Trial:
        if self._error is not None and request.name == self._at:
            raise self._error
        return Trial([1, 2], 0.01, None)


def race(*contenders: Stranger, progress: list[str]) -> tuple[Race, Exclusions]:
    out = Exclusions(progress.append, needed=PLAIN_ROW)
    tokenizer = load_tokenizer(starter.target())
    return Race(Lineup(contenders, Oracle(8), tokenizer, 64), out), out


def test_one_that_fails_is_told_of_and_the_others_go_on():
    told: list[str] = []
    failing = Stranger("theirs", RuntimeError("no such kernel\nsecond line"))
    contest, out = race(Stranger(PLAIN_ROW), failing, Stranger("third"), progress=told)
    for turn, request in enumerate(ASKED):
        contest.run(request, turn)
    assert {name for name, _ in contest.results} == {PLAIN_ROW, "third"}
    assert all(
        set(kept) == {"first", "second", "third"} for kept in contest.results.values()
    )
    assert out.reasons == {"theirs": "RuntimeError: no such kernel"}
    assert told == ["theirs is left out: RuntimeError: no such kernel"]


def test_our_own_errors_need_no_name():
    contest, out = race(
        Stranger(PLAIN_ROW), Stranger("ours", DraftError("it is too long")), progress=[]
    )
    contest.run(ASKED[1], 0)
    assert out.reasons == {"ours": "it is too long"}


def test_a_warm_up_leaves_out_too_and_keeps_nothing():
    contest, out = race(
        Stranger(PLAIN_ROW), Stranger("theirs", ValueError(), at="first"), progress=[]
    )
    contest.run(ASKED[0], 0, counts=False)
    assert contest.results == {}
    assert out.reasons == {"theirs": "ValueError"}


def test_nothing_is_measured_without_plain_decoding():
    contest, _ = race(
        Stranger(PLAIN_ROW, ModelError("too big")), Stranger("theirs"), progress=[]
    )
    with pytest.raises(ModelError, match="too big"):
        contest.run(ASKED[1], 0)


def test_a_run_reports_who_could_not_be_loaded_or_made():
    told: list[str] = []
    options = Options(
        draft="./no-such-draft",
        methods=("lm", "transformers.assisted"),
        temperatures=(0.0,),
        limit_prompts=1,
        max_tokens=4,
        dtype="float32",
    )
    report = run(options, told.append)
    assert set(report.exclusions) == {"lm", "transformers.assisted"}
    assert all("no-such-draft" in why for why in report.exclusions.values())
    assert [row.name for row in report.rows] == [PLAIN_ROW, "transformers.generate"]
    assert report.as_json()["exclusions"] == report.exclusions
    assert sum("is left out: " in line for line in told) == 2
    assert "left out: lm (" in str(report.table().caption)


def test_a_target_that_failed_once_answers_the_next_contender():
    target, tokenizer = (
        Model.load(starter.target(), dtype="float32"),
        load_tokenizer(starter.target()),
    )
    engines = [
        Engine(target, NoDrafter(), rule("match"), FixedBudget(0), Scheduler(slots=1))
        for _ in range(2)
    ]
    broken, sound = (
        EngineEntry(name, engine, tokenizer)
        for name, engine in zip("ab", engines, strict=True)
    )
    before = sound.run(ASKED[0]).tokens

    def verify(*_: object) -> None:
        raise RuntimeError("out of memory")

    engines[0].usual._verifier.verify = verify  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            broken.run(ASKED[0])
        assert engines[0].idle
    assert sound.run(ASKED[0]).tokens == before
