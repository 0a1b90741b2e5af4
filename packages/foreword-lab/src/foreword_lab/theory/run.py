"""Measurement of a pair for the formulas: loads it, answers the prompts, reports."""

from collections.abc import Callable
from dataclasses import dataclass

from foreword.api.session import Session
from foreword.errors import InvalidRequest
from foreword.model import need_tokenizer
from foreword.native.machine import machine
from foreword.prompts import load
from foreword.registry import PLAIN
from foreword.types import SamplingParams
from foreword_lab.bench.pair import PairOptions, load_pair
from foreword_lab.bench.run import render, spread
from foreword_lab.theory.report import HeatReport, TheoryReport, summarize
from foreword_lab.theory.rounds import chain_rule, measure

QUICK_PROMPTS, QUICK_TOKENS = 6, 48
"""Prompts, and tokens of each answer, of a quick measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryOptions(PairOptions):
    """Options of a measurement for the formulas."""

    prompts: str = "in-domain"
    """Name of a set, or a file; see foreword.prompts."""
    limit_prompts: int | None = 24
    """Number of prompts, spread over the sources; None = all."""
    tokens: int = 96
    """Maximum number of new tokens in each answer."""
    temperatures: tuple[float, ...] = (0.0, 1.0)
    seed: int = 0
    quick: bool = False
    """Fewer prompts and shorter answers."""


def examine(
    options: TheoryOptions, note: Callable[[str], None] = lambda _: None
) -> TheoryReport:
    """Measure a pair, and return the figures of the formulas beside it.

    Raises ModelError or InvalidRequest, with the reason, if it cannot be measured.
    """
    if options.method_name == PLAIN:
        raise InvalidRequest(
            f"cannot measure drafting with method {PLAIN!r}: it drafts nothing. Choose "
            "another"
        )
    limit, tokens = options.limit_prompts, options.tokens
    if options.quick:
        limit = min(limit or QUICK_PROMPTS, QUICK_PROMPTS)
        tokens = min(tokens, QUICK_TOKENS)
    chosen = spread(load(options.prompts), limit)
    session = load_pair(options, chain_rule())
    tokenizer = need_tokenizer(session.tokenizer)
    prompts = [render(tokenizer, prompt) for prompt in chosen]
    heats = [
        _heat(session, prompts, temperature, tokens, options.seed, note)
        for temperature in dict.fromkeys(options.temperatures)
    ]
    settings = {
        "prompts": options.prompts,
        "max_tokens": tokens,
        "seed": options.seed,
        "rule": "match, chains",
    }
    return TheoryReport(
        options.target or "bundled",
        options.method_name,
        len(prompts),
        settings,
        machine(str(session.target.device)),
        tuple(heats),
    )


def _heat(
    session: Session,
    prompts: list[tuple[int, ...]],
    temperature: float,
    tokens: int,
    seed: int,
    note: Callable[[str], None],
) -> HeatReport:
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens)
    answers = measure(session, prompts, params, note)
    return summarize(answers, temperature, session.target.cost)
