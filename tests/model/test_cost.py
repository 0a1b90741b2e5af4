"""The table of costs: values between entries; one measurement a machine and model."""

import json
import os
from dataclasses import replace
from operator import attrgetter

import pytest

from foreword.model import Mode, Model, measure
from foreword.model.cost import NEAR, POINTS, Cost, Point, known
from foreword.model.cost_table import fitted, measured, threads_waited
from foreword_lab.bench.timed import timed
from tiny_models import build

LOOK = 5
"""Forwards of a look at whether a table is still true: a prompt and four of one row."""
COST = Cost(
    {1: 1.0, 2: 1.0, 4: 3.0}, context=100, per_token=0.01, per_token_and_row=0.001
)
sizes = attrgetter("backend", "vocab", "context")


@pytest.fixture
def model() -> Model:
    return Model(build("llama"))


@pytest.fixture
def trusted(monkeypatch):
    """No machine outruns its table, though other tests may have slowed it down."""
    monkeypatch.setattr("foreword.model.cost.STALE", 0.0)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "foreword" / "costs"


@pytest.mark.parametrize(
    ("nodes", "rows", "context", "seconds"),
    [
        (0, 1, 100, 1.0),
        (2, 1, 100, 2.0),  # half way between 2 and 4
        (5, 1, 100, 5.0),  # beyond the table, as steep as at its end
        (0, 1, 200, 1 + 100 * 0.01 + 100 * 0.001),
        (1, 2, 100, 3 + 100 * 0.01),  # a second text of 100 tokens is read as well
        (3, 1, 200, 3 + 100 * 0.01 + 4 * 100 * 0.001),
        (0, 1, 0, 0.1),  # never nothing, however far from what was measured
    ],
)
def test_between_its_entries_a_cost_is_in_proportion(nodes, rows, context, seconds):
    assert COST(nodes, rows, context) == pytest.approx(seconds)


def test_a_table_of_forwards_names_what_they_are_made_of():
    """Rows, context and sequences of a forward whose seconds are their sum."""

    def seconds(point: Point) -> float:
        rows = point.rows * point.sequences
        context = 1024 if point.is_far else 128
        keys = 1e-6 * context * point.sequences + 1e-8 * context * rows
        return 1e-3 + 1e-4 * rows + keys + 2e-4 * (point.sequences - 1)

    noise = (1.0, 1.5, 1.2)  # other programs: nothing is faster than alone
    times = {one: [seconds(one) * more for more in noise] for one in POINTS}
    cost = fitted(times, 128, 1024)
    assert cost.per_token == pytest.approx(1e-6)
    assert cost.per_token_and_row == pytest.approx(1e-8)
    assert cost.per_sequence == pytest.approx(2e-4, rel=0.01)
    alone = Cost({1: 1.0}, context=100, per_sequence=0.5)
    assert alone(0, 4, 100) == 1.0 + 3 * 0.5
    few = fitted({Point(1): [1.0]}, 128, 0)
    assert (few.per_token, few.per_sequence) == (0.0, 0.0)


def test_without_a_context_that_of_the_table_is_meant():
    assert COST(3) == COST(3, 1, 100) == 3.0


def test_one_entry_stands_for_all():
    assert Cost({1: 2.0}, context=0)(15) == 2.0


@pytest.mark.parametrize(
    "table", [{}, {0: 1.0}, {1: -1.0}, {1: 0.0}, {1: float("nan")}, {1: float("inf")}]
)
def test_impossible_seconds_are_refused(table):
    with pytest.raises(ValueError, match="finite seconds"):
        Cost(table, context=0)


def test_more_rows_never_cost_less_in_what_is_measured(model):
    found = measured(*sizes(model))
    assert sorted(found.seconds) == [1, 2, 4, 8, 12, 16, 32, 64]
    assert list(found.seconds.values()) == sorted(found.seconds.values())
    assert found.context == NEAR
    assert min(found.seconds.values()) > 0


def test_no_time_is_enough_for_one_row(model):
    assert list(measured(*sizes(model), seconds=0.0).seconds) == [1]


def test_slow_model_is_measured_at_one_and_many_rows(model):
    # 256 rows do not fit in its context
    assert list(measured(*sizes(model), seconds=1e-6).seconds) == [1, 64]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_that_cannot_go_back_is_measured_too():
    model = Model(build("mamba"))
    assert model.mode not in (Mode.TREE, Mode.CHAIN)
    found = measured(*sizes(model))
    assert found.seconds[1] > 0
    assert (found.per_token, found.per_token_and_row) == (0, 0)


def test_what_is_kept_comes_back_as_it_was(model, tmp_path, trusted):
    first = known(*sizes(model), {"model": "a"}, tmp_path)
    backend = timed(model)
    assert known(*sizes(model), {"model": "a"}, tmp_path) == first
    looked = backend.reads
    assert looked <= LOOK
    known(*sizes(model), {"model": "b"}, tmp_path)
    assert backend.reads > 3 * looked
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_that_the_machine_outruns_is_measured_again(model, tmp_path):
    first = known(*sizes(model), {}, tmp_path)
    (file,) = tmp_path.iterdir()
    held = json.loads(file.read_text())
    slow = {rows: 100 * seconds for rows, seconds in held["seconds"].items()}
    file.write_text(json.dumps(held | {"seconds": slow}))
    assert known(*sizes(model), {}, tmp_path).seconds[1] < 50 * first.seconds[1]
    assert json.loads(file.read_text())["seconds"]["1"] < slow["1"] / 2


@pytest.mark.parametrize(("waited", "tables"), [(0.0, 1), (0.24, 1), (0.3, 0)])
def test_a_table_of_a_busy_machine_is_used_and_not_kept(
    model, tmp_path, monkeypatch, waited, tables
):
    cost = replace(COST, waited=waited)
    monkeypatch.setattr("foreword.model.cost_table.BUSY", 0.25)
    monkeypatch.setattr("foreword.model.cost_table.measured", lambda *_: cost)
    assert known(*sizes(model), {}, tmp_path) == cost
    assert len(list(tmp_path.iterdir())) == tables


def test_threads_wait_for_a_core_as_the_system_counts(tmp_path):
    for thread, counts in {
        "1": "9 2000000000 7",
        "2": "9 500000000 7",
        "3": "",
    }.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(counts)
    assert threads_waited(tmp_path) == 2.5
    assert threads_waited(tmp_path / "of another system") == 0.0


def test_a_second_load_of_the_same_model_measures_nothing(model, cache, trusted):
    first = model.cost
    (file,) = cache.glob("*.json")
    again = Model(build("llama"))
    backend = timed(again)
    assert again.cost == first
    assert backend.reads <= LOOK
    assert measure(again) == dict(first.seconds)
    assert json.loads(file.read_text())["key"]["backend"] == model.capability.backend


def test_another_number_of_threads_is_another_machine(model, cache, monkeypatch):
    assert model.cost
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    assert Model(build("llama")).cost
    assert len(list(cache.glob("*.json"))) == 2


DAMAGES = {
    "empty": lambda held: "",
    "a list": lambda held: "[]",
    "cut": lambda held: json.dumps(held)[:-20],
    "another key": lambda held: json.dumps(held | {"key": {}}),
    "negative": lambda held: json.dumps(held | {"seconds": {"1": -3}}),
    "no table": lambda held: json.dumps(held | {"seconds": [1, 2]}),
    "too large": lambda held: json.dumps(held | {"seconds": {"1": 10**400}}),
    "too deep": lambda held: "[" * 100_000,
    "zeros": lambda held: "\0" * 500,
    "a field more": lambda held: json.dumps(held | {"surprise": 1}),
    "of an older version": lambda held: json.dumps(
        {name: held[name] for name in held if name != "waited"}
    ),
    "a field less": lambda held: json.dumps(
        {name: held[name] for name in held if name != "context"}
    ),
}


def test_damaged_or_foreign_file_is_measured_again(model, tmp_path):
    first = known(*sizes(model), {}, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = json.loads(file.read_text())
    backend = timed(model)
    for name, damage in DAMAGES.items():
        file.write_text(damage(whole))
        before = backend.reads
        again = known(*sizes(model), {}, tmp_path)
        assert backend.reads - before > LOOK, name
        # how many are measured depends on the time of each
        assert min(again.seconds) == min(first.seconds) == 1, name
        assert json.loads(file.read_text()).keys() == whole.keys(), name


@pytest.mark.skipif(
    os.name != "posix", reason="needs a path below a file to be refused"
)
def test_unwritable_folder_costs_a_measurement_only(model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert known(*sizes(model), {}, tmp_path / "file" / "costs").seconds[1] > 0


def test_relative_cache_is_ignored(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert known(*sizes(model), {}).seconds[1] > 0
    assert [file.name for file in tmp_path.iterdir()] == ["home"]
    assert (
        len(list((tmp_path / "home" / ".cache" / "foreword" / "costs").iterdir())) == 1
    )
    monkeypatch.setenv("HOME", "nowhere")
    assert known(*sizes(model), {}).seconds[1] > 0
    assert not (tmp_path / "nowhere").exists()
