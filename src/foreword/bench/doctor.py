"""Diagnosis of a drafter: its acceptance as configured, with shifted hidden states, and
common causes of failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from foreword import bundled
from foreword.api.llm import LLM
from foreword.bench.prompts import load
from foreword.budget import FixedBudget
from foreword.draft import default_method as usual_method
from foreword.draft import method as find_method
from foreword.draft.cross_vocab.pairing import load_with_fallback
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import check_decoder_only, check_same, load_tokenizer
from foreword.options import LoadingOptions
from foreword.registry import MODEL, PLAIN
from foreword.types.params import SamplingParams
from foreword.types.stats import Stats
from foreword.verify import Rule, rule

RARE, GOOD = 0.1, 0.4
"""Share of first draft tokens accepted: below RARE something is wrong, from GOOD on a
drafter is well trained.
"""
BETTER, SURE = 0.1, 3.0
"""Other hidden states are right if their acceptance is higher by BETTER and by SURE
standard errors.
"""
CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
)

Level = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions(LoadingOptions):
    """A target and its drafter."""

    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    draft: str | None = None
    method: str | None = None

    @property
    def draft_source(self) -> str | None:
        """What to draft with: the bundled draft model, unless something is named."""
        if self.draft is None and self.target is None and self.method is None:
            return str(bundled.draft())
        return self.draft or None

    @property
    def method_name(self) -> str:
        """The drafting method, by default the usual one for the draft."""
        return self.method or usual_method(self.draft_source)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(PairOptions):
    """Options of a diagnosis."""

    prompts: int = 12
    tokens: int = 48
    """Maximum number of new tokens in each answer."""
    texts: tuple[str, ...] = ()
    """Prompts; empty = the benchmark's, in-domain for the bundled target and else
    out-of-domain.
    """


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class DrafterResult:
    """Figures of a drafter over all answers."""

    first: float
    """Share of the rounds whose first draft token was accepted."""
    tried: int
    """Rounds with a draft token."""
    tokens_per_pass: float
    """At a draft budget of 8."""
    propose: float
    """Seconds of the propose step per round."""
    score: float
    """Seconds of the score step per round."""

    @property
    def error(self) -> float:
        """Standard error of `first`."""
        return (
            math.sqrt(self.first * (1 - self.first) / self.tried) if self.tried else 1.0
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All results of a diagnosis."""

    method: str
    work: dict[str, DrafterResult]
    """Temperature -> figures."""
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(finding.level != "bad" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "healthy": self.healthy}


def examine(
    options: DoctorOptions, note: Callable[[str], None] = lambda _: None
) -> Diagnosis:
    """Load a drafter with its target and diagnose it.

    Raises ModelError or InvalidRequest, with the reason, if it cannot be loaded.
    """
    draft, method = options.draft_source, options.method_name
    llm = load_pair(options, rule("match"))
    findings = [
        Finding("good", f"it loads with {llm.target.name}, for the method {method}")
    ]
    if draft and find_method(method).about.takes == MODEL:
        findings += _language(llm, draft)
    prompts = _prompts(llm, options)
    work: dict[str, DrafterResult] = {}
    for temperature in (0.0, 1.0):
        note(f"{len(prompts)} prompts at temperature {temperature:g}")
        work[f"{temperature:g}"] = _run_drafter(
            llm, prompts, temperature, options.tokens
        )
    findings += [
        _acceptance(work),
        *_layers(llm, prompts, work["0"], options.tokens, note),
        _price(work["0"]),
    ]
    return Diagnosis(method, work, tuple(findings))


def load_pair(options: PairOptions, rule: Rule) -> LLM:
    """Return the target with this drafter, which must load: LLM itself falls back to
    plain decoding.
    """
    draft, method = options.draft_source, options.method_name
    kind = find_method(method)
    if kind.about.needs and draft is None:
        raise InvalidRequest(
            f"cannot run method {method!r}: it needs {kind.about.takes}. Name one"
        )
    how = {
        name: getattr(options, name)
        for name in ("dtype", "device", "trust_remote_code")
    }
    llm = LLM(options.target, method=PLAIN, **how)
    check_decoder_only(llm.target, "measure drafting")
    load = partial(load_with_fallback, kind) if options.method is None else kind.load
    drafter = load(draft, llm.target, llm.tokenizer)
    llm.session.engine = Engine(llm.target, drafter, rule, FixedBudget(1), Scheduler())
    return llm


def _prompts(llm: LLM, options: DoctorOptions) -> list[list[int]]:
    if options.texts:
        return [llm.tokenizer(text)["input_ids"] for text in options.texts]
    kind = "in-domain" if options.target is None else "out-of-domain"
    chats = load(kind)[:: max(1, len(load(kind)) // options.prompts)][: options.prompts]
    if llm.tokenizer.chat_template:
        return [llm.render(chat.messages) for chat in chats]
    return [llm.tokenizer(chat.messages[-1]["content"])["input_ids"] for chat in chats]


def _run_drafter(
    llm: LLM, prompts: Sequence[list[int]], temperature: float, tokens: int
) -> DrafterResult:
    params = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True
        )
        for seed in range(len(prompts))
    ]
    llm.engine.default.budget = FixedBudget(1)
    first: list[Stats] = [
        llm.generate([prompt], [one])[0].stats
        for prompt, one in zip(prompts, params, strict=True)
    ]
    llm.engine.default.budget = FixedBudget(8)
    eight = [
        llm.generate([prompt], [one])[0].stats
        for prompt, one in zip(prompts, params, strict=True)
    ]
    rounds = max(1, sum(one.rounds for one in eight))
    alone = max(1, sum(one.rounds for one in first))
    tried = sum(sum(one.drafted_at[:1]) for one in first)
    return DrafterResult(
        sum(sum(one.accepted_at[:1]) for one in first) / tried if tried else 0.0,
        tried,
        sum(one.tokens for one in eight) / rounds,
        sum(one.propose for one in first) / alone,
        sum(one.score for one in first) / alone,
    )


def _language(llm: LLM, draft: str | Path) -> list[Finding]:
    """Check that both models have the same vocabulary and chat template."""
    theirs = load_tokenizer(draft, trust_remote_code=llm.target.trust_remote_code)
    try:
        check_same(llm.tokenizer, theirs)
    except VocabularyMismatch as error:
        return [
            Finding(
                "note",
                f"another tokenizer: {error}",
                "draft tokens are translated; a draft of the same is faster",
            )
        ]
    findings = [Finding("good", "every token has the same id in both")]
    if llm.tokenizer.chat_template and theirs.chat_template:
        rendered = [
            one.apply_chat_template([*CHAT], tokenize=False)
            for one in (llm.tokenizer, theirs)
        ]
        if rendered[0] != rendered[1]:
            advice = (
                "prompts use the target's; train it on that (foreword data regenerate, "
                "foreword train lm)"
            )
            findings.append(
                Finding("note", "its chat template is not the target's", advice)
            )
    return findings


def _acceptance(work: dict[str, DrafterResult]) -> Finding:
    shares = ", ".join(
        f"{one.first:.0%} at temperature {heat}" for heat, one in work.items()
    )
    best = max(one.first for one in work.values())
    if best < RARE:
        advice = (
            "it was trained for other weights of this target, on other texts, or with "
            "another chat template: train it "
            "on the target's own answers (foreword data regenerate, foreword train)"
        )
        return Finding(
            "bad", f"hardly any first draft token is accepted: {shares}", advice
        )
    if best < GOOD:
        return Finding(
            "note",
            f"few first draft tokens are accepted: {shares}",
            "train it on more of the target's own answers",
        )
    return Finding("good", f"first draft tokens accepted: {shares}")


def _layers(
    llm: LLM,
    prompts: Sequence[list[int]],
    configured: DrafterResult,
    tokens: int,
    note: Callable[[str], None],
) -> list[Finding]:
    """Check the hidden states that a head reads against both neighbours: some configs
    count from 1.
    """
    drafter = llm.engine.drafter
    hidden_layers = drafter.hidden_layers
    last = llm.target.hf.config.get_text_config().num_hidden_layers
    if not hidden_layers:
        return []
    for shift in (-1, 1):
        states = tuple(state + shift for state in hidden_layers)
        if not all(0 <= state <= last for state in states):
            continue
        note(f"the same with hidden states {list(states)}")
        drafter.hidden_layers = states
        shifted = _run_drafter(llm, prompts, 0.0, tokens)
        drafter.hidden_layers = hidden_layers
        if shifted.first - configured.first > max(
            BETTER, SURE * math.hypot(shifted.error, configured.error)
        ):
            what = (
                f"with hidden states {list(states)} {shifted.first:.0%} of its first "
                "draft tokens are accepted"
            )
            advice = (
                f"its config names {list(hidden_layers)}; write {list(states)} there, "
                "as transformers numbers them"
            )
            return [Finding("bad", what, advice)]
    return [
        Finding(
            "good",
            f"hidden states {list(hidden_layers)} are the right ones: their "
            "neighbours are no better",
        )
    ]


def _price(work: DrafterResult) -> Finding:
    share = work.propose / work.score if work.score else 0.0
    cost = (
        f"a draft token takes {1000 * work.propose:.2f} ms, {share:.0%} of a forward "
        "of the target"
    )
    if share > work.first:
        return Finding(
            "bad",
            cost,
            "it costs more than it saves: use a smaller drafter, or a method without "
            "one",
        )
    return Finding("good", cost)
