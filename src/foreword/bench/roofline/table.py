"""The limit of a machine as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from foreword.bench.roofline.limit import Limit
from foreword.bench.roofline.passes import Pass
from foreword.tables import Column, Table, figure, name_column, share

_Line: TypeAlias = tuple[Limit, Pass]


def table(results: Sequence[Limit]) -> Table[_Line]:
    """Return a table for the terminal."""
    return Table(
        [
            (one, row)
            for one in results
            for row in (*one.rows, *one.batches, *one.prompts)
        ],
        (
            name_column("model", _name),
            Column("nodes", lambda line: line[1].shown),
            Column("ms", lambda line: f"{line[1].ms.mid:.2f}"),
            Column("95 %", lambda line: line[1].ms.ends),
            Column("of the floor", lambda line: share(line[1].share_of_floor)),
            Column("of one", lambda line: _over_one(line[1])),
            Column("predicted", lambda line: figure(line[1].predicted_ms)),
        ),
        title="forwards against what the machine allows",
        caption="\n".join(_caption(one) for one in results),
        section=lambda line: id(line[0]),
    )


def _name(line: _Line) -> str:
    """Return the name of the model, in its first row only."""
    one, row = line
    return one.shape if row is one.rows[0] else ""


def _over_one(row: Pass) -> str:
    """Return the time over that of one token."""
    return "–" if row.cost_over_one is None else f"{row.cost_over_one:.2f}×"


def _caption(one: Limit) -> str:
    weights, keys = one.roof.weights / 1e6, one.keys / 1e6
    bandwidth, floor = one.roof.bandwidth / 1e9, 1e3 * one.floor
    peaks = one.roof.as_json()["peaks_gmac_s"]
    parts = [
        f"{one.shape} ({one.backend}): {weights:,.1f} MB of weights, ",
        f"{keys:,.1f} MB of keys and values ({one.context} tokens)",
        f"; at {bandwidth:.1f} GB/s the floor is {floor:.2f} ms",
    ]
    if peaks:
        each = (f"{name} {size:,.0f}" for name, size in peaks.items())
        parts.append(f"; billions of multiply-adds a second: {', '.join(each)}")
    parts.append(f"; predictions are off by at most {one.off:.0%}")
    return "".join(parts)
