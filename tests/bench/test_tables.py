"""The table of every report: its rows in the terminal and as JSON."""

from dataclasses import dataclass

from foreword.cli.common.tables import BARE, Column, Table, figure, row_json, share
from foreword_train.report.interval import Interval


@dataclass(frozen=True)
class Line:
    name: str
    group: int
    speed: Interval | None


LINES = (
    Line("first", 1, Interval(1.0, 2.0, 3.0)),
    Line("second", 1, None),
    Line("third", 2, None),
)
COLUMNS = (
    Column[Line]("name", lambda line: line.name, justify="left"),
    Column[Line]("speed", lambda line: line.speed.text if line.speed else "–"),
)


def test_rows_stand_under_their_heads(printed):
    lines = printed(Table(LINES, COLUMNS, look=BARE), 80).splitlines()
    assert [line.rstrip() for line in lines] == [
        "name               speed",
        "first   2.00 (1.00–3.00)",
        "second                 –",
        "third                  –",
    ]


def test_groups_are_parted(printed):
    table = Table(LINES, COLUMNS, section=lambda line: line.group)
    lines = printed(table).splitlines()
    assert [bool(line.strip()) for line in lines[-5:-1]] == [True, True, False, True]


def test_emphasis_styles_one_row(printed):
    table = Table(
        LINES, COLUMNS, emphasis=lambda line: "bold" if line.name == "second" else None
    )
    shown = printed(table, 80, force_terminal=True, color_system="standard")
    assert "\x1b[1msecond" in shown
    assert "\x1b[1mfirst" not in shown


def test_json_writes_an_interval_as_three_numbers():
    assert [row_json(line) for line in LINES[:2]] == [
        {"name": "first", "group": 1, "speed": [1.0, 2.0, 3.0]},
        {"name": "second", "group": 1, "speed": None},
    ]


def test_missing_figures_are_empty():
    assert (share(None), figure(None), figure(None, missing="–")) == ("", "", "–")
    assert (share(0.5), figure(1.234), figure(1.26, 1)) == ("50%", "1.23", "1.3")
