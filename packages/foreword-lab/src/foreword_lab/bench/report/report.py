"""Report of a benchmark: rows computed from trials, a table and JSON."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from statistics import fmean
from typing import Any

from rich.console import Group
from rich.markup import escape

from foreword.cli.common.tables import (
    ENDS,
    Column,
    Table,
    figure,
    name_column,
    row_json,
    share,
)
from foreword_lab.bench.decoding import (
    Decoding,
    decode_speed,
    decode_speedup,
    decoding_of,
)
from foreword_lab.bench.exclusions import left_out
from foreword_lab.bench.lineup import DRAFTS, ENTRIES, OUTSIDE, PLAIN_ROW
from foreword_lab.bench.peers import engines
from foreword_lab.bench.peers.hf import GENERATE
from foreword_lab.bench.records import Results, Trial, costs_of
from foreword_lab.bench.report.by_source import BySource, table_of
from foreword_lab.bench.report.regret import Regret
from foreword_lab.bench.stats import Interval, speed, speedup

PREDICTIONS = (
    "\n⁴ tokens per decoding round, in the rounds with draft tokens that have "
    "probabilities:\n"
    "1 + the sum of these / 1 + the accepted draft tokens"
)
"""Note on the column of predictions."""
LITTLE = 10**6
"""Bytes per token. Below, no weights are read from disk."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry at one temperature. None: does not apply, or is not visible."""

    name: str
    temperature: float
    tokens_per_second: float
    """From the prompt's ids to the last token, prefill included."""
    tokens_per_pass: float | None
    """Tokens per forward of the target, prefill included."""
    acceptance: float | None
    """Accepted / verified draft tokens; a draft token after a rejected one is not
    verified.

    `acceptance` of foreword.types.Stats is accepted / scored draft tokens, which is
    never larger."""
    drafted_per_accepted: float | None
    """Scored draft tokens per accepted one."""
    speedup_over_plain: Interval
    speedup_over_generate: Interval | None
    """None if transformers' generate was excluded."""
    decode_speedup_over_plain: Interval | None
    """Over the tokens after the prompt, where both sides have such tokens."""
    load_seconds: float | None
    """Seconds to load the target and its drafter; None where a target was enlarged."""
    first_token_seconds: float | None
    """Mean seconds from the prompt's ids to the first token."""
    decode_tokens_per_second: float | None
    """Over the tokens after the prompt was read."""
    same_text: bool | None
    """Whether every answer equals plain decoding's, token for token; None if it samples
    with another noise.
    """
    same_text_share: float | None
    """Share of the answers that equal plain decoding's."""
    same_tokens_share: float | None
    """Share of plain decoding's tokens before the first difference."""
    prompts: int
    tokens: int
    """Emitted tokens of all answers."""
    disk_bytes_per_token: float | None
    """Bytes read from disk per emitted token; None where weights are in memory, or the
    system does not tell.
    """
    decoding: Decoding | None
    by_method: Mapping[str, int] = field(default_factory=dict)
    """Tokens by the method that wrote them, of an entry that chooses among several."""


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    target: str
    seed: int
    rows: tuple[Row, ...]
    settings: Mapping[str, Any]
    exclusions: Mapping[str, str] = field(default_factory=dict)
    """Entries that failed -> reason; they have no rows."""
    regrets: tuple[Regret, ...] = ()
    by_source: tuple[BySource, ...] = ()
    """Speeds by kind of prompt."""

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts; an interval is [low, mid,
        high].

        One prompt gives no interval, but [null, mid, null]. In a row, `acceptance` is
        accepted / verified draft tokens (see Row), and each `decode_…` figure leaves
        out the rounds that read the prompt.
        """
        names = ("machine", "versions", "target", "seed", "settings", "exclusions")
        whole = {name: getattr(self, name) for name in names}
        return {
            **whole,
            "rows": [_plain(row_json(row), single=self.single) for row in self.rows],
            "regrets": [asdict(one) for one in self.regrets],
            "by_source": [asdict(one) for one in self.by_source],
        }

    @property
    def single(self) -> bool:
        """Whether one prompt was measured, which gives no interval over prompts."""
        return len(self.settings["prompt_ids"]) == 1

    def tables(self) -> Group:
        """Return tables for the terminal: of all prompts, beside other engines by
        phase, and by the source of the prompts.
        """
        peers = any(row.name in engines.NAMES for row in self.rows)
        phases = Table(self.rows, PHASES, title="the same, apart") if peers else None
        shown = (self.table(), phases, table_of(self.by_source))
        return Group(*filter(None, shown))

    def table(self) -> Table[Row]:
        """Return the table of all prompts."""

        def times(value: Interval | None) -> str:
            return _interval(value, single=self.single)

        return Table(
            self.rows,
            (
                name_column("method", lambda row: row.name),
                Column("T", lambda row: f"{row.temperature:g}"),
                Column("tokens/s", lambda row: f"{row.tokens_per_second:.1f}"),
                Column("per pass", lambda row: figure(row.tokens_per_pass)),
                Column("accepted¹", lambda row: share(row.acceptance)),
                Column("outside²", _outside),
                *([PREDICTED] if any(map(_predicted, self.rows)) else ()),
                Column("× plain", lambda row: times(row.speedup_over_plain)),
                Column("× generate", lambda row: times(row.speedup_over_generate)),
                Column("same text³", _same),
            ),
            title=f"{self.target}, {_words(self.settings)}",
            caption=_caption(self),
            section=lambda row: row.temperature,
        )


def rows(results: Results, loads: Mapping[str, float] = {}) -> tuple[Row, ...]:
    """Return one row for each entry and temperature; `results` must hold plain decoding
    at every temperature, `loads` seconds by entry.
    """
    names = [name for name in ENTRIES if any(name == key[0] for key in results)]
    made_here = [name for name, _ in results if name not in names]
    order = {
        name: place
        for place, name in enumerate(
            dict.fromkeys((*names[:1], *made_here, *names[1:]))
        )
    }
    keys = sorted(results, key=lambda key: (key[1], order[key[0]]))
    return tuple(_row(*key, results, loads.get(key[0])) for key in keys)


def _row(name: str, temperature: float, results: Results, load: float | None) -> Row:
    mine, plain = results[name, temperature], results[PLAIN_ROW, temperature]
    generate = results.get((GENERATE, temperature))
    costs = costs_of(mine)
    trials = [trial for repeats in mine.values() for trial in repeats]
    pairs = [
        (trial.tokens, plain[prompt][0].tokens)
        for prompt, many in mine.items()
        for trial in many
    ]
    comparable = name not in OUTSIDE or temperature == 0
    firsts = [trial.first for trial in trials if trial.first is not None]
    rounds = [one for trial in trials for one in trial.rounds]
    verified = sum(one.verified for one in rounds)
    accepted = sum(one.accepted for one in rounds)
    return Row(
        name=name,
        temperature=temperature,
        tokens_per_second=speed(costs),
        tokens_per_pass=_per_pass(trials),
        acceptance=accepted / verified if verified else None,
        drafted_per_accepted=sum(one.drafted for one in rounds) / accepted
        if accepted
        else None,
        speedup_over_plain=speedup(costs, costs_of(plain)),
        speedup_over_generate=None
        if generate is None
        else speedup(costs, costs_of(generate)),
        decode_speedup_over_plain=decode_speedup(mine, plain),
        load_seconds=load,
        first_token_seconds=fmean(firsts) if firsts else None,
        decode_tokens_per_second=decode_speed(mine),
        same_text=all(answer == text for answer, text in pairs) if comparable else None,
        same_text_share=fmean(answer == text for answer, text in pairs)
        if comparable
        else None,
        same_tokens_share=_shared(pairs) if comparable else None,
        prompts=len(mine),
        tokens=sum(len(trial.tokens) for trial in trials),
        disk_bytes_per_token=_disk(trials),
        decoding=decoding_of([one for one in rounds if not one.reading]),
        by_method=dict(sum((Counter(trial.by_method) for trial in trials), Counter())),
    )


def _per_pass(trials: list[Trial]) -> float | None:
    passes = [trial.passes for trial in trials if trial.passes is not None]
    return (
        sum(len(trial.tokens) for trial in trials) / sum(passes)
        if len(passes) == len(trials)
        else None
    )


def _disk(trials: list[Trial]) -> float | None:
    """Return the bytes read from disk per token; None for the few of any system."""
    read = sum(trial.disk or 0 for trial in trials) / sum(
        len(trial.tokens) for trial in trials
    )
    return read if read > LITTLE else None


def _shared(pairs: list[tuple[list[int], list[int]]]) -> float:
    """Return the share of the second texts' tokens before the first difference."""
    alike = [
        list(takewhile(bool, (one == other for one, other in zip(*pair, strict=False))))
        for pair in pairs
    ]
    return sum(map(len, alike)) / sum(len(text) for _, text in pairs)


def _plain(row: dict[str, Any], *, single: bool) -> dict[str, Any]:
    """Flatten a row, so that every figure is a top-level key of its JSON object."""
    if single:
        for name in (
            "speedup_over_plain",
            "speedup_over_generate",
            "decode_speedup_over_plain",
        ):
            row[name] = row[name] and [None, row[name][ENDS.index("mid")], None]
    decoding = row.pop("decoding") or dict.fromkeys(
        field.name for field in fields(Decoding)
    )
    del decoding["tokens_per_second"]
    return {**row, **decoding}


def _predicted(row: Row) -> str:
    """Return predicted and measured tokens per round; empty without a prediction."""
    decoding = row.decoding
    if decoding is None or decoding.predicted_tokens_per_round is None:
        return ""
    measured = figure(decoding.predicted_rounds_tokens_per_round)
    return f"{decoding.predicted_tokens_per_round:.2f} / {measured}"


PREDICTED = Column[Row]("predicted⁴", _predicted)
PHASES = (
    Column[Row]("method", lambda row: row.name, justify="left"),
    Column[Row]("T", lambda row: f"{row.temperature:g}"),
    Column[Row]("load, s", lambda row: figure(row.load_seconds)),
    Column[Row]("first token, s", lambda row: figure(row.first_token_seconds)),
    Column[Row]("then tokens/s", lambda row: figure(row.decode_tokens_per_second, 1)),
)


def _words(settings: Mapping[str, Any]) -> str:
    return (
        f"{len(settings['prompt_ids'])} {settings['prompts']} prompts, at most "
        f"{settings['max_tokens']} tokens"
    )


def _caption(report: Report) -> str:
    machine, versions = report.machine, report.versions
    intervals = "95 % intervals over prompts"
    if report.single:
        intervals = "one prompt, so no intervals"
    return (
        f"{machine.get('gpu', machine['cpu'])}, threads: {machine['threads']}; "
        f"torch {versions['torch']}, "
        f"transformers {versions['transformers']}; "
        f"{intervals}\n"
        "¹ accepted / verified draft tokens; one after a rejected one is not verified, "
        "but is counted in the share\n"
        "of all draft tokens that `foreword generate` prints\n"
        "² share of a decoding round outside the forwards of target and draft model\n"
        "³ share of the answers that equal plain decoding's (and of its tokens, those "
        "before the first that differs)"
        + (PREDICTIONS if any(map(_predicted, report.rows)) else "")
        + escape(held_line(report.settings["held"]))
        + "".join(f"\n{one.sentence}" for one in report.regrets)
        + "".join(
            f"\n{row.name} at T = {row.temperature:g} reads "
            f"{row.disk_bytes_per_token / 1e9:.2f} GB from disk per token"
            for row in report.rows
            if row.disk_bytes_per_token is not None
        )
        + escape(left_out(report.exclusions))
    )


def held_line(held: Mapping[str, str]) -> str:
    """Return a line on the weights of each engine, unless all hold the same target."""
    if len({how for engine, how in held.items() if engine != DRAFTS}) == 1:
        return ""
    return (
        "\nweights: "
        + "; ".join(f"{engine} {how}" for engine, how in held.items())
        + ". Other weights, other texts"
    )


def _outside(row: Row) -> str:
    return share(row.decoding and row.decoding.outside_forward_share)


def _interval(value: Interval | None, *, single: bool) -> str:
    if value is None:
        return ""
    if value.low == value.high == 1:
        return "1"
    return f"{value.mid:.2f}" if single else value.text


def _same(row: Row) -> str:
    if row.same_text_share is None or row.same_tokens_share is None:
        return "other draw"
    return (
        "yes"
        if row.same_text
        else f"{row.same_text_share:.0%} ({row.same_tokens_share:.0%})"
    )
