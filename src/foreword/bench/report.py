"""From trials to rows, a table and JSON. Knows what was measured; knows nothing about how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from statistics import fmean
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from foreword.bench.lineup import CONTENDERS, OUTSIDE, PLAIN_ROW
from foreword.bench.peers import GENERATE
from foreword.bench.stats import Costs, Interval, speed, speedup
from foreword.bench.trial import Round, Trial

Results = dict[tuple[str, float], dict[str, list[Trial]]]
"""(contender, temperature) -> prompt -> its trials."""


STEPS = ("guess", "score", "decide", "keep")


@dataclass(frozen=True, slots=True)
class Decoding:
    """What the rounds after the prompt was read were like."""

    outside_forward_share: float
    """Share of their time that is spent outside the forwards of target and draft model."""
    tokens_per_second: float
    prediction: float
    """The same if nothing but the target's forwards took time: what this machine allows these guesses to earn."""
    share_of_allowed: float
    """tokens_per_second / prediction."""
    round_seconds: Mapping[str, float]
    """Mean of each step of a round."""
    whole_round_seconds: float
    """Mean of a round, its bookkeeping included."""
    target_forward_seconds: float
    """Mean of what the forwards of the target take in a round."""
    draft_forward_seconds: float
    """The same for the forwards of a draft model; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one temperature. None where a figure does not apply or cannot be seen from outside."""

    name: str
    temperature: float
    tokens_per_second: float
    """From prompt ids to the last id, the reading of the prompt included."""
    tokens_per_pass: float | None
    """Tokens per forward of the target, the one that reads the prompt included."""
    acceptance: float | None
    """Share of the *judged* guesses that were kept: a guess that follows a rejected one is not judged. (The
    `acceptance` of foreword.types.Stats is the share of all guesses that were scored, which is never larger.)"""
    drafted_per_accepted: float | None
    """Guesses that were scored for each that was kept."""
    speedup_over_plain: Interval
    speedup_over_generate: Interval | None
    """None where transformers' generate was left out."""
    decode_speedup_over_plain: Interval | None
    """In the rounds after the prompt was read, over the prompts that both sides have such rounds of."""
    same_text: bool | None
    """Every answer equals plain decoding's, token for token; None where the draw is another one."""
    same_text_share: float | None
    """Share of the answers that do."""
    same_tokens_share: float | None
    """Share of plain decoding's tokens that stand before the first difference: after it two texts say little."""
    prompts: int
    tokens: int
    """Written, all answers together."""
    decoding: Decoding | None


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    target: str
    seed: int
    rows: tuple[Row, ...]
    settings: Mapping[str, Any]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Contenders that failed, and why; they have no rows."""

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; an interval is [low, mid, high].

        In a row, `acceptance` is kept / judged guesses (see Row), and each `decode_…` figure leaves out the rounds
        that read the prompt.
        """
        names = ("machine", "versions", "target", "seed", "settings", "left_out")
        whole = {name: getattr(self, name) for name in names}
        return {**whole, "rows": [_plain(asdict(row)) for row in self.rows]}

    def table(self) -> Table:
        """For the terminal."""
        table = Table(
            title=f"{self.target}, {_words(self.settings)}",
            caption=_caption(self),
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("method", no_wrap=True)
        for head in ("T", "tokens/s", "per pass", "accepted¹", "outside²", "× plain", "× generate", "same text³"):
            table.add_column(head, justify="right")
        last = None
        for row in self.rows:
            if last is not None and row.temperature != last:
                table.add_section()
            last = row.temperature
            table.add_row(
                row.name,
                f"{row.temperature:g}",
                f"{row.tokens_per_second:.1f}",
                "" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}",
                _share(row.acceptance),
                _share(row.decoding and row.decoding.outside_forward_share),
                _interval(row.speedup_over_plain),
                _interval(row.speedup_over_generate),
                _same(row),
            )
        return table


def rows(results: Results) -> tuple[Row, ...]:
    """One row for each contender and temperature; results must hold plain decoding at every temperature."""
    names = [name for name in CONTENDERS if any(name == key[0] for key in results)]
    made_here = [name for name, _ in results if name not in names]
    order = {name: place for place, name in enumerate(dict.fromkeys((*names[:1], *made_here, *names[1:])))}
    keys = sorted(results, key=lambda key: (key[1], order[key[0]]))
    return tuple(_row(name, temperature, results) for name, temperature in keys)


def _row(name: str, temperature: float, results: Results) -> Row:
    mine, plain = results[name, temperature], results[PLAIN_ROW, temperature]
    generate = results.get((GENERATE, temperature))
    costs = _costs(mine)
    trials = [trial for repeats in mine.values() for trial in repeats]
    pairs = [(trial.tokens, plain[prompt][0].tokens) for prompt, many in mine.items() for trial in many]
    comparable = name not in OUTSIDE or temperature == 0
    rounds = [one for trial in trials for one in trial.rounds]
    judged, accepted = sum(one.judged for one in rounds), sum(one.accepted for one in rounds)
    return Row(
        name=name,
        temperature=temperature,
        tokens_per_second=speed(costs),
        tokens_per_pass=_per_pass(trials),
        acceptance=accepted / judged if judged else None,
        drafted_per_accepted=sum(one.drafted for one in rounds) / accepted if accepted else None,
        speedup_over_plain=speedup(costs, _costs(plain)),
        speedup_over_generate=None if generate is None else speedup(costs, _costs(generate)),
        decode_speedup_over_plain=_decode_speedup(mine, plain),
        same_text=all(said == text for said, text in pairs) if comparable else None,
        same_text_share=fmean(said == text for said, text in pairs) if comparable else None,
        same_tokens_share=_shared(pairs) if comparable else None,
        prompts=len(mine),
        tokens=sum(len(trial.tokens) for trial in trials),
        decoding=_decoding([one for one in rounds if not one.reading]),
    )


def _per_pass(trials: list[Trial]) -> float | None:
    passes = [trial.passes for trial in trials if trial.passes is not None]
    return sum(len(trial.tokens) for trial in trials) / sum(passes) if len(passes) == len(trials) else None


def _shared(pairs: list[tuple[list[int], list[int]]]) -> float:
    """Tokens before the first difference, among all of the second texts."""
    alike = [list(takewhile(bool, (one == other for one, other in zip(*pair, strict=False)))) for pair in pairs]
    return sum(map(len, alike)) / sum(len(text) for _, text in pairs)


def _decoding(rounds: list[Round]) -> Decoding | None:
    if not rounds:
        return None
    tokens, seconds = sum(one.tokens for one in rounds), sum(one.seconds for one in rounds)
    target, draft = sum(one.target for one in rounds), sum(one.draft for one in rounds)
    return Decoding(
        outside_forward_share=1 - (target + draft) / seconds,
        tokens_per_second=tokens / seconds,
        prediction=tokens / target,
        share_of_allowed=target / seconds,
        round_seconds={step: fmean(getattr(one.clock, step) for one in rounds) for step in STEPS},
        whole_round_seconds=seconds / len(rounds),
        target_forward_seconds=target / len(rounds),
        draft_forward_seconds=draft / len(rounds),
    )


def _costs(trials: dict[str, list[Trial]]) -> Costs:
    """Prompts in one order for everybody, so that ratios are paired."""
    sums = [(sum(len(t.tokens) for t in trials[p]), sum(t.seconds for t in trials[p])) for p in sorted(trials)]
    return np.array(sums, dtype=np.float64)


def _decode_speedup(mine: dict[str, list[Trial]], plain: dict[str, list[Trial]]) -> Interval | None:
    """None where the rounds cannot be seen, or no answer went on after the round that read its prompt."""
    ours, theirs = _decode_costs(mine), _decode_costs(plain)
    both = (ours > 0).all(axis=1) & (theirs > 0).all(axis=1)
    return speedup(ours[both], theirs[both]) if both.any() else None


def _decode_costs(trials: dict[str, list[Trial]]) -> Costs:
    rounds = [[one for t in trials[p] for one in t.rounds if not one.reading] for p in sorted(trials)]
    sums = [(sum(one.tokens for one in some), sum(one.seconds for one in some)) for some in rounds]
    return np.array(sums, dtype=np.float64)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Flat, so that a reader of the JSON finds every figure at the top of its row."""
    for name in ("speedup_over_plain", "speedup_over_generate", "decode_speedup_over_plain"):
        row[name] = row[name] and [row[name][end] for end in ("low", "mid", "high")]
    decoding = row.pop("decoding") or dict.fromkeys(field.name for field in fields(Decoding))
    decoding["decode_tokens_per_second"] = decoding.pop("tokens_per_second")
    return {**row, **decoding}


def _words(settings: Mapping[str, Any]) -> str:
    return f"{len(settings['prompt_ids'])} {settings['prompts']} prompts, at most {settings['max_tokens']} tokens"


def _caption(report: Report) -> str:
    machine, versions = report.machine, report.versions
    return (
        f"{machine['cpu']}, threads: {machine['threads']}; torch {versions['torch']}, "
        f"transformers {versions['transformers']}; "
        "95 % intervals over prompts\n"
        "¹ share of the judged guesses that were kept; a guess after a rejected one is not judged, but is counted in\n"
        "the share of all guesses that `foreword generate` tells\n"
        "² share of a decoding round outside the forwards of target and draft model\n"
        "³ share of the answers that equal plain decoding's (and of its tokens, those before the first that differs)"
        + escape("".join(f"\nleft out: {name} ({why})" for name, why in report.left_out.items()))
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _interval(value: Interval | None) -> str:
    if value is None:
        return ""
    return "1" if value.low == value.high == 1 else f"{value.mid:.2f} ({value.low:.2f}–{value.high:.2f})"


def _same(row: Row) -> str:
    if row.same_text_share is None or row.same_tokens_share is None:
        return "other draw"
    return "yes" if row.same_text else f"{row.same_text_share:.0%} ({row.same_tokens_share:.0%})"
