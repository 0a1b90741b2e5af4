"""Comparison of verification rules with one draft model: tokens per pass of the target,
at equal draft budgets.

No clock is read: the target's passes are counted, so the result is the same on any
machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, product
from typing import Any, TypeAlias

import numpy as np

from foreword import bundled
from foreword.budget import FixedBudget
from foreword.cli.common.tables import Column, Look, Table, name_column, row_json
from foreword.draft import method
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer, check_same, load_tokenizer
from foreword.model.seq2seq import check_decoder_only
from foreword.prompts import load
from foreword.registry import DEFAULT_WITH_DRAFT, RULES
from foreword.types import Request, SamplingParams
from foreword.types.params import NODES
from foreword.verify import Rule
from foreword_lab.bench.run import Options, check, rendered, spread
from foreword_lab.bench.stats import Interval, speedup

SLOTS = 8
_Line: TypeAlias = tuple[tuple[float, str], dict[int, float]]
"""Temperature and rule, and the tokens per pass by budget."""
TIMED = ("inflate", "methods", "peers", "plot", "repeats", "budget", "sources")
"""Options that only timed benchmarks use."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rule at one temperature and budget."""

    name: str
    temperature: float
    budget: int
    tokens_per_pass: Interval
    """95 % over prompts."""


def entrants() -> dict[str, Rule]:
    """Return every rule; same-text rules also limited to chains, for comparison with
    rules that support only chains.
    """
    by_name: dict[str, Rule] = {}
    for name, rule in RULES.items():
        by_name[name] = rule
        if rule.keeps == "same-text":
            by_name[f"{name}, chain"] = replace(rule, lists="one")
    return by_name


def compare(
    options: Options,
    budgets: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Answer every prompt under every rule, at every temperature and draft budget.

    Raises InvalidRequest or ModelError before any answer.
    """
    _check(options, budgets)
    models = _load(options)
    prompts = spread(load(options.prompts), options.limit)
    context = models.target.context
    texts = [rendered(one, models.tokenizer, context, options) for one in prompts]
    rows = []
    for temperature, (name, rule) in product(options.temperatures, entrants().items()):
        for budget in budgets:
            engine = models.engine(rule, budget)
            counts = _counts(engine, texts, options, temperature)
            per_pass = speedup(counts, np.ones_like(counts))
            rows.append(Row(name, temperature, budget, per_pass))
        progress(f"temperature {temperature:g}: {name}")
    return rows


def _check(options: Options, budgets: Sequence[int]) -> None:
    check(options)
    ignored = [
        name for name in TIMED if getattr(options, name) != getattr(Options(), name)
    ]
    if ignored:
        raise InvalidRequest(
            f"cannot compare rules: {' and '.join(ignored)} would have no effect, "
            "since no clock is read. Leave it out"
        )
    if not budgets or not all(1 <= budget <= NODES for budget in budgets):
        raise InvalidRequest(
            f"cannot compare rules: 'budgets' must be from 1 to {NODES}, got "
            f"{list(budgets)}"
        )


@dataclass(frozen=True, slots=True)
class _Models:
    """The target, its draft model, and their tokenizer."""

    target: Model
    draft: Model
    tokenizer: Tokenizer

    def engine(self, rule: Rule, budget: int) -> Engine:
        """Return an engine with a new drafter: one adapts to what was accepted."""
        drafter = method(DEFAULT_WITH_DRAFT).load(
            self.draft, self.target, self.tokenizer
        )
        scheduler = Scheduler(slots=SLOTS)
        return Engine(self.target, drafter, rule, FixedBudget(budget), scheduler)


def _load(options: Options) -> _Models:
    source = options.target or bundled.target()
    draft = options.draft or (None if options.target else bundled.draft())
    if draft is None:
        raise InvalidRequest(
            "cannot compare rules: no draft model. Give draft='folder or hub id'"
        )
    trusted = options.trust_remote_code
    tokenizer = load_tokenizer(source, trust_remote_code=trusted)
    target = Model.load(source, dtype=options.dtype, trust_remote_code=trusted)
    check_decoder_only(target.seq2seq, target.name, "compare rules")
    check_same(tokenizer, load_tokenizer(draft, trust_remote_code=trusted))
    model = Model.load(draft, dtype=target.dtype, trust_remote_code=trusted)
    return _Models(target, model, tokenizer)


def as_json(rows: Sequence[Row], options: Options) -> dict[str, Any]:
    """Return plain numbers; an interval is [low, mid, high]."""
    return {"settings": asdict(options), "rows": [row_json(row) for row in rows]}


def table(rows: Sequence[Row]) -> Table[_Line]:
    """Return a terminal table: a line per rule and temperature, a column per budget,
    the best of each in bold.
    """
    heats = list(dict.fromkeys(row.temperature for row in rows))
    lines: dict[tuple[float, str], dict[int, float]] = {}
    best: dict[tuple[float, int], float] = {}
    for row in rows:
        mid = row.tokens_per_pass.mid
        lines.setdefault((row.temperature, row.name), {})[row.budget] = mid
        at = (row.temperature, row.budget)
        best[at] = max(best.get(at, mid), mid)

    def column(budget: int) -> Column[_Line]:
        def cell(line: _Line) -> str:
            (temperature, _), by_budget = line
            is_best = by_budget[budget] == best[temperature, budget]
            shown = f"{by_budget[budget]:.2f}"
            return f"[bold]{shown}[/]" if is_best else shown

        return Column(str(budget), cell)

    return Table(
        sorted(lines.items(), key=lambda line: heats.index(line[0][0])),
        (
            name_column("rule", lambda line: line[0][1]),
            Column("T", lambda line: f"{line[0][0]:g}"),
            *(column(budget) for budget in sorted({row.budget for row in rows})),
        ),
        title="tokens per pass of the target, by draft budget",
        look=Look(),
        section=lambda line: line[0][0],
    )


def _counts(
    engine: Engine, texts: Sequence[Sequence[int]], options: Options, temperature: float
) -> np.ndarray:
    """Return emitted tokens and rounds that emitted any, for each prompt."""
    ids, eos = count(1), engine.target.eos
    requests = []
    for number, text in enumerate(texts):
        seed = options.seed + number
        params = SamplingParams(
            temperature=temperature, seed=seed, max_tokens=options.tokens
        )
        request = Request(next(ids), list(text), len(text), params, seed, eos)
        requests.append(request)
        engine.add(request)
    while not engine.idle:
        engine.step()
    return np.array(
        [[one.stats.tokens, one.stats.rounds] for one in requests], dtype=np.float64
    )
