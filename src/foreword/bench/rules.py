"""What each rule makes of the same draft model: tokens per pass of the target, at equal numbers of guesses.

No clock is read: the target's passes are counted, so any machine says the same.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from foreword import family
from foreword.bench.prompts import load
from foreword.bench.run import Options, check, rendered, spread
from foreword.bench.stats import Interval, speedup
from foreword.draft import WITH_DRAFT, method
from foreword.engine import NODES, Engine
from foreword.errors import InvalidRequest
from foreword.model import Model, check_same, load_tokenizer
from foreword.scheduler import Scheduler
from foreword.types import SamplingParams, Sequence
from foreword.verify import RULES, Rule
from foreword.width import Fixed

SLOTS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One rule at one temperature and budget."""

    name: str
    temperature: float
    budget: int
    tokens_per_pass: Interval
    """95 % over prompts."""


def entrants() -> dict[str, Rule]:
    """Every rule; and one that keeps the text on chains as well, beside the rules that know only chains."""
    found: dict[str, Rule] = {}
    for name, one in RULES.items():
        found[name] = one
        if one.keeps == "same-text":
            found[f"{name}, chain"] = replace(one, lists="one")
    return found


def compare(asked: Options, budgets: List[int], progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Answer every prompt under every rule, at every temperature, with so many guesses in a round.

    Raises InvalidRequest or ModelError before any answer.
    """
    check(asked)
    ignored = [
        name
        for name in ("inflate", "methods", "peers", "plot", "repeats", "width", "sources")
        if getattr(asked, name) != getattr(Options(), name)
    ]
    if ignored:
        raise InvalidRequest(
            f"rules are compared without a clock, so {' and '.join(ignored)} would change nothing; leave it out"
        )
    if not budgets or not all(1 <= budget <= NODES for budget in budgets):
        raise InvalidRequest(f"budgets must be from 1 to {NODES}, got {list(budgets)}")
    source = asked.target or family.target()
    draft = asked.draft or (None if asked.target else family.draft())
    if draft is None:
        raise InvalidRequest("rules are compared with a draft model: give draft='folder or hub id'")
    tokenizer, target = load_tokenizer(source), Model.load(source, dtype=asked.dtype)
    check_same(tokenizer, load_tokenizer(draft))
    model, drafter = Model.load(draft, dtype=target.dtype), method(WITH_DRAFT)
    prompts = spread(load(asked.prompts), asked.limit)
    texts = [rendered(prompt, tokenizer, target.context, asked) for prompt in prompts]
    rows = []
    for temperature in asked.temperatures:
        for name, rule in entrants().items():
            for budget in budgets:
                guesses = drafter.load(model, target, tokenizer)  # a new one: it learns from what it guesses
                engine = Engine(target, guesses, rule, Fixed(budget), Scheduler(slots=SLOTS))
                counts = _counts(engine, texts, asked, temperature)
                rows.append(Row(name, temperature, budget, speedup(counts, np.ones_like(counts))))
            progress(f"temperature {temperature:g}: {name}")
    return rows


def as_json(rows: List[Row], asked: Options) -> dict[str, Any]:
    """Plain numbers; an interval is [low, mid, high]."""
    plain = [
        asdict(row) | {"tokens_per_pass": [getattr(row.tokens_per_pass, end) for end in ("low", "mid", "high")]}
        for row in rows
    ]
    return {"settings": asdict(asked), "rows": plain}


def table(rows: List[Row]) -> Table:
    """For the terminal: a line for each rule and temperature, a column for each budget, the best of it in bold."""
    budgets = sorted({row.budget for row in rows})
    shown = Table(title="tokens per pass of the target, by guesses in a round", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("rule", no_wrap=True)
    for head in ("T", *map(str, budgets)):
        shown.add_column(head, justify="right")
    for temperature in dict.fromkeys(row.temperature for row in rows):
        here = [row for row in rows if row.temperature == temperature]
        best = {b: max(row.tokens_per_pass.mid for row in here if row.budget == b) for b in budgets}
        for name in dict.fromkeys(row.name for row in here):
            found = {row.budget: row.tokens_per_pass for row in here if row.name == name}
            cells = [_cell(found[b], bold=found[b].mid == best[b]) for b in budgets]
            shown.add_row(name, f"{temperature:g}", *cells)
        shown.add_section()
    return shown


def _counts(engine: Engine, texts: List[List[int]], asked: Options, temperature: float) -> np.ndarray:
    """Tokens written and rounds that wrote any, for each text."""
    ids, eos = count(1), engine.target.eos
    sequences = []
    for place, text in enumerate(texts):
        seed = asked.seed + place
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=asked.tokens)
        sequences.append(Sequence(next(ids), list(text), len(text), params, seed, eos))
        engine.add(sequences[-1])
    while not engine.idle:
        engine.step()
    return np.array([[one.stats.tokens, one.stats.rounds] for one in sequences], dtype=np.float64)


def _cell(found: Interval, *, bold: bool) -> str:
    return f"[bold]{found.mid:.2f}[/]" if bold else f"{found.mid:.2f}"
