"""From trials to rows, a table and JSON. Knows what was measured; knows nothing about how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from foreword.bench.lineup import CONTENDERS, PLAIN_ROW
from foreword.bench.peers import GENERATE, NAMES
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
    tokens_per_pass: float
    """Tokens per forward of the target, the one that reads the prompt included."""
    acceptance: float | None
    """Share of the *judged* guesses that were kept: a guess that follows a rejected one is not judged. (The
    `acceptance` of foreword.types.Stats is the share of all guesses that were scored, which is never larger.)"""
    speedup_over_plain: Interval
    speedup_over_generate: Interval
    decode_speedup_over_plain: Interval | None
    """In the rounds after the prompt was read, over the prompts that both sides have such rounds of."""
    same_text: bool | None
    """Every answer equals plain decoding's, token for token; None where the draw is another one."""
    same_text_share: float | None
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

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; an interval is [low, mid, high].

        In a row, `acceptance` is kept / judged guesses (see Row), and each `decode_…` figure leaves out the rounds
        that read the prompt.
        """
        whole = {name: getattr(self, name) for name in ("machine", "versions", "target", "seed", "settings")}
        return {**whole, "rows": [_plain(asdict(row)) for row in self.rows]}

    def table(self) -> Table:
        """For the terminal."""
        table = Table(
            title=f"{self.target}, {_words(self.settings)}",
            caption=_caption(self.machine, self.versions),
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column("method", no_wrap=True)
        for head in ("T", "tokens/s", "per pass", "accepted¹", "outside²", "× plain", "× generate", "same text"):
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
                f"{row.tokens_per_pass:.2f}",
                _share(row.acceptance),
                _share(row.decoding and row.decoding.outside_forward_share),
                _interval(row.speedup_over_plain),
                _interval(row.speedup_over_generate),
                _same(row),
            )
        return table


def rows(results: Results) -> tuple[Row, ...]:
    """One row for each contender and temperature; results must hold both baselines at every temperature."""
    names = [name for name in CONTENDERS if any(name == key[0] for key in results)]
    made_here = [name for name, _ in results if name not in names]
    order = {name: place for place, name in enumerate(dict.fromkeys((*names[:1], *made_here, *names[1:])))}
    keys = sorted(results, key=lambda key: (key[1], order[key[0]]))
    return tuple(_row(name, temperature, results) for name, temperature in keys)


def _row(name: str, temperature: float, results: Results) -> Row:
    mine, plain = results[name, temperature], results[PLAIN_ROW, temperature]
    costs = _costs(mine)
    trials = [trial for repeats in mine.values() for trial in repeats]
    same = None
    if name not in NAMES or temperature == 0:
        same = fmean(trial.tokens == plain[prompt][0].tokens for prompt, many in mine.items() for trial in many)
    rounds = [one for trial in trials for one in trial.rounds]
    judged = sum(one.judged for one in rounds)
    return Row(
        name=name,
        temperature=temperature,
        tokens_per_second=speed(costs),
        tokens_per_pass=sum(len(trial.tokens) for trial in trials) / sum(trial.passes for trial in trials),
        acceptance=sum(one.accepted for one in rounds) / judged if judged else None,
        speedup_over_plain=speedup(costs, _costs(plain)),
        speedup_over_generate=speedup(costs, _costs(results[GENERATE, temperature])),
        decode_speedup_over_plain=_decode_speedup(mine, plain),
        same_text=None if same is None else same == 1,
        same_text_share=same,
        prompts=len(mine),
        tokens=sum(len(trial.tokens) for trial in trials),
        decoding=_decoding([one for one in rounds if not one.reading]),
    )


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


def _caption(machine: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    return (
        f"{machine['cpu']}, threads: {machine['threads']}; torch {versions['torch']}, "
        f"transformers {versions['transformers']}; "
        "95 % intervals over prompts\n"
        "¹ share of the judged guesses that were kept; a guess after a rejected one is not judged, but is counted in\n"
        "the share of all guesses that `foreword generate` tells\n"
        "² share of a decoding round outside the forwards of target and draft model"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _interval(value: Interval) -> str:
    return "1" if value.low == value.high == 1 else f"{value.mid:.2f} ({value.low:.2f}–{value.high:.2f})"


def _same(row: Row) -> str:
    if row.same_text is None or row.same_text_share is None:
        return "other draw"
    return "yes" if row.same_text else f"{row.same_text_share:.0%}"
