"""Diagnosis of a drafter on its target, from measured acceptance and costs."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

from foreword.api.session import Session
from foreword.draft.heads.loading import trained_for
from foreword.files import cache
from foreword.model import measure, need_tokenizer
from foreword.prompts import Prompt, load
from foreword_lab.bench.pair import PairOptions, load_pair
from foreword_lab.bench.run import render, spread
from foreword_lab.doctor import acceptance, costs, fit
from foreword_lab.doctor.figures import Figures
from foreword_lab.doctor.finding import Diagnosis, Finding, ranked
from foreword_lab.doctor.measured import MeasuredPair
from foreword_lab.doctor.rounds import LONGEST, chain_rule

CHECKS = (
    acceptance.low,
    acceptance.temperature,
    acceptance.nothing_to_draft,
    acceptance.warming,
    fit.tokenizer,
    fit.hidden_layers,
    fit.vocabulary,
    costs.drafter,
    costs.fixed,
    costs.checking,
)
"""Functions from what was measured to findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(PairOptions):
    """Options of a diagnosis."""

    prompts: int = 12
    tokens: int = 48
    """Maximum number of new tokens in each answer."""
    texts: tuple[str, ...] = ()
    """Prompts; empty = the benchmark's, in-domain for the bundled target only."""


def _trained_for(options: DoctorOptions) -> str:
    """Return whose head the drafter is, in words; empty where no config says it."""
    name = None
    if isinstance(options.draft, str | Path):
        name = trained_for(options.draft)
    return f"; its config names {name} as its target" if name else ""


def examine(
    options: DoctorOptions, note: Callable[[str], None] = lambda _: None
) -> Diagnosis:
    """Load a drafter with its target and diagnose it.

    Raises ModelError or InvalidRequest, with the reason, if it cannot be loaded.
    """
    tables = _tables()
    session = load_pair(options, chain_rule())
    findings = [
        Finding(
            "good",
            "loading",
            f"it loads with {session.target.name}, for the method "
            f"{options.method_name}{_trained_for(options)}",
        ),
        *_cost_table(session, tables),
    ]
    pair = _measured(session, options, note)
    for check in CHECKS:
        findings += check(pair)
    return Diagnosis(
        subject={"method": options.method_name},
        work={heat: one.as_json() for heat, one in pair.figures.items()},
        lines=tuple(_line(heat, one) for heat, one in pair.figures.items()),
        findings=ranked(findings),
    )


def _measured(
    session: Session, options: DoctorOptions, note: Callable[[str], None]
) -> MeasuredPair:
    """Measure the drafter at temperatures 0 and 1."""
    chats: list[Prompt] = []
    tokenizer = need_tokenizer(session.tokenizer)
    if options.texts:
        prompts = [tuple(tokenizer(text)["input_ids"]) for text in options.texts]
    else:
        kind = "in-domain" if options.target is None else "out-of-domain"
        chats = spread(load(kind), options.prompts)
        # sources in turn, so that late answers are not of another kind than early ones
        Random(0).shuffle(chats)
        prompts = [render(tokenizer, chat) for chat in chats]
    pair = MeasuredPair(
        session=session,
        draft=options.draft_source,
        method=options.method_name,
        chats=chats,
        prompts=prompts,
        tokens=options.tokens,
        note=note,
    )
    pair.measure()
    return pair


def _line(heat: str, row: Figures) -> str:
    return (
        f"temperature {heat}: {row.best:.2f}× plain decoding predicted, with "
        f"{row.nodes} draft tokens; {row.tokens_per_pass:.2f} tokens per pass with "
        f"{LONGEST}"
    )


def _tables() -> dict[str, int]:
    """Return the cost tables on this disk, and when each was written."""
    tables: dict[str, int] = {}
    with suppress(OSError):
        for file in (cache() / "costs").glob("*.json"):
            tables[file.name] = file.stat().st_mtime_ns
    return tables


def _cost_table(session: Session, before: dict[str, int]) -> list[Finding]:
    """Return the finding that the target's forwards had to be timed."""
    started = perf_counter()
    measure(session.target)  # where it is not on disk
    took = perf_counter() - started
    if _tables() == before:
        return []
    evidence = (
        "no current cost table of this target was on disk; timing its forwards took "
        f"{took:.1f} s, which the first answer waits for"
    )
    remedy = (
        "Keep the folder ~/.cache/foreword, or the one in XDG_CACHE_HOME, between runs"
    )
    return [Finding("note", "cold cost table", evidence, remedy)]
