"""Results of a benchmark of batches: rows, their table, and what is too slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape

from foreword.bench.exclusions import left_out
from foreword.bench.lineup import PLAIN_ROW
from foreword.bench.stats import Interval
from foreword.tables import Column, Table, name_column, row_json

GAIN = 1.1
"""Times the speed of plain decoding, at least, whose gain beside another program is
compared: a share of a smaller gain would be noise.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry at one temperature and batch size."""

    name: str
    temperature: float
    beside: bool
    """Whether another program kept one core busy."""
    batch: int
    tokens_per_second: float
    """Median of the turns, from the first prompt to the last token, prefill
    included.
    """
    over_plain: Interval
    """Median of the ratios to plain decoding in the same turn."""
    drafted: int
    accepted: int
    same_text: bool
    """Whether every answer equals plain decoding's."""

    def below(self, least: Sequence[float]) -> bool:
        """Return whether the entry is slower than `least` times plain decoding: the
        first number alone, the last one beside another program.
        """
        if self.name == PLAIN_ROW:
            return False
        return self.over_plain.mid < (least[-1] if self.beside else least[0])

    @property
    def shown(self) -> str:
        """The row in words."""
        where = ", beside a busy program" if self.beside else ""
        return (
            f"{self.name} at temperature {self.temperature:g} in batches of "
            f"{self.batch}{where}: {self.over_plain.text}"
        )


@dataclass(frozen=True, slots=True)
class Together:
    """A finished run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    target: str
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    exclusions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts; an interval is [low, mid,
        high].
        """
        rows = [row_json(row) for row in self.rows]
        return {
            name: getattr(self, name)
            for name in ("machine", "versions", "target", "settings", "exclusions")
        } | {"rows": rows, "kept_gains": self.kept_gains()}

    def kept_gains(self) -> list[float]:
        """Return the gain of each row beside another program over its gain alone, where
        that is at least GAIN.
        """
        alone = {_kind(row): row for row in self.rows if not row.beside}
        pairs = [(row, alone[_kind(row)]) for row in self.rows if row.beside]
        return [
            (row.over_plain.mid - 1) / (quiet.over_plain.mid - 1)
            for row, quiet in pairs
            if quiet.over_plain.mid >= GAIN
        ]

    def table(self) -> Table[dict[int, Row]]:
        """Return a table for the terminal, with a column for each batch size."""
        lines: dict[tuple[float, bool, str], dict[int, Row]] = {}
        for row in self.rows:
            key = row.temperature, row.beside, row.name
            lines.setdefault(key, {})[row.batch] = row
        beside = any(row.beside for row in self.rows)
        where = Column[dict[int, Row]]("beside", _beside)
        return Table(
            list(lines.values()),
            (
                name_column("method", lambda line: _first(line).name),
                Column("T", lambda line: f"{_first(line).temperature:g}"),
                *([where] if beside else []),
                *map(_column, dict.fromkeys(row.batch for row in self.rows)),
                Column("same text", _same),
            ),
            title=(
                f"{self.target}, {self.settings['prompts']} prompts, × plain decoding "
                "at the same batch size"
            ),
            caption=escape(
                "plain: tokens/s. Others: median of the turns' ratios, and its 95 % "
                "interval" + self._kept() + left_out(self.exclusions)
            ),
        )

    def _kept(self) -> str:
        gains = self.kept_gains()
        if not gains:
            return ""
        return f". Beside a busy program, at least {min(gains):.0%} of a gain is kept"


def _kind(row: Row) -> tuple[str, float, int]:
    return row.name, row.temperature, row.batch


def _column(batch: int) -> Column[dict[int, Row]]:
    def cell(line: dict[int, Row]) -> str:
        row = line[batch]
        plain = row.name == PLAIN_ROW
        return f"{row.tokens_per_second:,.0f}" if plain else row.over_plain.text

    return Column(str(batch), cell)


def _first(line: dict[int, Row]) -> Row:
    return next(iter(line.values()))


def _beside(line: dict[int, Row]) -> str:
    return "a busy program" if _first(line).beside else "nothing"


def _same(line: dict[int, Row]) -> str:
    return "yes" if all(row.same_text for row in line.values()) else "NO"
