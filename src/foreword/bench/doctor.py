"""Why a drafter's guesses come true or not: it is tried at its work, as it is and read in other ways.

Knows the LLM and what usually goes wrong; knows nothing about how any drafter guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from foreword import family
from foreword.bench.prompts import load
from foreword.draft import MODEL, PLAIN
from foreword.draft import method as find_method
from foreword.draft import usual as usual_method
from foreword.draft.pairing import load_anyhow
from foreword.engine import Engine
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.llm import LLM
from foreword.model import check_same, load_tokenizer
from foreword.params import SamplingParams
from foreword.scheduler import Scheduler
from foreword.stats import Stats
from foreword.verify import rule
from foreword.width import Fixed

RARE, GOOD = 0.1, 0.4
"""Share of first guesses that come true below which something is wrong, and from which a drafter is well trained."""
BETTER, SURE = 0.1, 3.0
"""Another reading that is right so much more often, and by so many standard errors, is the right one."""
CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."})

Level = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is examined, and with what."""

    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    draft: str | None = None
    method: str | None = None
    prompts: int = 12
    tokens: int = 48
    """At most this long answers."""
    texts: tuple[str, ...] = ()
    """Prompts; none = those of the benchmark that the family was not trained on."""
    dtype: str = "auto"
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """How a drafter did, over all answers."""

    first: float
    """Share of the rounds in which the first guess came true."""
    tried: int
    """Rounds with a guess."""
    tokens_per_pass: float
    """With 8 guesses."""
    guess: float
    """Seconds of guessing, a round."""
    score: float
    """Seconds of scoring, a round."""

    @property
    def error(self) -> float:
        """Standard error of `first`."""
        return math.sqrt(self.first * (1 - self.first) / self.tried) if self.tried else 1.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found."""

    method: str
    work: dict[str, Work]
    """By temperature."""
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(finding.level != "bad" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "healthy": self.healthy}


def examine(asked: Asked, note: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Load a drafter beside its target and find out what is wrong with it, if anything is.

    Raises ModelError or InvalidRequest where it cannot be loaded, which says why.
    """
    draft = asked.draft or (str(family.draft()) if asked.target is None and asked.method is None else None)
    method = asked.method or usual_method(draft)
    llm = _patient(asked, draft, method)
    findings = [Finding("good", f"it loads beside {llm.target.name}, for the method {method}")]
    if draft and find_method(method).takes == MODEL:
        findings += _language(llm, draft)
    prompts = _prompts(llm, asked)
    work: dict[str, Work] = {}
    for temperature in (0.0, 1.0):
        note(f"{len(prompts)} prompts at temperature {temperature:g}")
        work[f"{temperature:g}"] = _work(llm, prompts, temperature, asked.tokens)
    findings += [_acceptance(work), *_layers(llm, prompts, work["0"], asked.tokens, note), _price(work["0"])]
    return Diagnosis(method, work, tuple(findings))


def _patient(asked: Asked, draft: str | None, method: str) -> LLM:
    """The target with this drafter, which must load: an LLM of its own would carry on without it."""
    kind = find_method(method)
    if kind.needs and draft is None:
        raise InvalidRequest(f"the method {method} needs {kind.takes}: say which")
    llm = LLM(asked.target, method=PLAIN, dtype=asked.dtype, device=asked.device)
    load = partial(load_anyhow, kind) if asked.method is None else kind.load
    drafter = load(draft, llm.target, llm.tokenizer)
    llm.engine = Engine(llm.target, drafter, rule("match"), Fixed(1), Scheduler())
    return llm


def _prompts(llm: LLM, asked: Asked) -> list[list[int]]:
    if asked.texts:
        return [llm.tokenizer(text)["input_ids"] for text in asked.texts]
    kind = "in-domain" if asked.target is None else "out-of-domain"
    chats = load(kind)[:: max(1, len(load(kind)) // asked.prompts)][: asked.prompts]
    if llm.tokenizer.chat_template:
        return [llm.render(chat.messages) for chat in chats]
    return [llm.tokenizer(chat.messages[-1]["content"])["input_ids"] for chat in chats]


def _work(llm: LLM, prompts: List[list[int]], temperature: float, tokens: int) -> Work:
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    llm.engine.usual.width = Fixed(1)
    first: list[Stats] = [llm.generate([prompt], [one])[0].stats for prompt, one in zip(prompts, params, strict=True)]
    llm.engine.usual.width = Fixed(8)
    eight = [llm.generate([prompt], [one])[0].stats for prompt, one in zip(prompts, params, strict=True)]
    rounds, alone = max(1, sum(one.rounds for one in eight)), max(1, sum(one.rounds for one in first))
    tried = sum(sum(one.drafted_at[:1]) for one in first)
    return Work(
        sum(sum(one.accepted_at[:1]) for one in first) / tried if tried else 0.0,
        tried,
        sum(one.tokens for one in eight) / rounds,
        sum(one.guess for one in first) / alone,
        sum(one.score for one in first) / alone,
    )


def _language(llm: LLM, draft: str | Path) -> list[Finding]:
    """Whether both models read the same tokens, and chats in the same form."""
    theirs = load_tokenizer(draft)
    try:
        check_same(llm.tokenizer, theirs)
    except VocabularyMismatch as error:
        return [Finding("note", f"another tokenizer: {error}", "guesses are translated; a draft of the same is faster")]
    found = [Finding("good", "every token has the same id in both")]
    if llm.tokenizer.chat_template and theirs.chat_template:
        said = [one.apply_chat_template([*CHAT], tokenize=False) for one in (llm.tokenizer, theirs)]
        if said[0] != said[1]:
            advice = "it is asked in the target's; train it on that (foreword data regenerate, foreword train lm)"
            found.append(Finding("note", "its chat template is not the target's", advice))
    return found


def _acceptance(work: dict[str, Work]) -> Finding:
    said = ", ".join(f"{one.first:.0%} at temperature {heat}" for heat, one in work.items())
    best = max(one.first for one in work.values())
    if best < RARE:
        advice = (
            "it was trained for other weights of this target, on other texts, or in another chat template: train it on "
            "the target's own answers (foreword data regenerate, foreword train)"
        )
        return Finding("bad", f"hardly a first guess comes true: {said}", advice)
    if best < GOOD:
        return Finding("note", f"few first guesses come true: {said}", "train it on more of the target's own answers")
    return Finding("good", f"first guesses come true: {said}")


def _layers(llm: LLM, prompts: List[list[int]], usual: Work, tokens: int, note: Callable[[str], None]) -> list[Finding]:
    """Whether a part that reads hidden states is shown those that it was trained on: some count them from 1."""
    drafter = llm.engine.drafter
    wants, last = drafter.wants, llm.target.hf.config.get_text_config().num_hidden_layers
    if not wants:
        return []
    for shift in (-1, 1):
        states = tuple(state + shift for state in wants)
        if not all(0 <= state <= last for state in states):
            continue
        note(f"the same with hidden states {list(states)}")
        drafter.wants = states
        found = _work(llm, prompts, 0.0, tokens)
        drafter.wants = wants
        if found.first - usual.first > max(BETTER, SURE * math.hypot(found.error, usual.error)):
            what = f"with hidden states {list(states)} {found.first:.0%} of its first guesses come true"
            advice = f"its config names {list(wants)}; say {list(states)} there, as transformers numbers them"
            return [Finding("bad", what, advice)]
    return [Finding("good", f"hidden states {list(wants)} are the right ones: their neighbours serve it no better")]


def _price(work: Work) -> Finding:
    share = work.guess / work.score if work.score else 0.0
    said = f"a guess takes {1000 * work.guess:.2f} ms, {share:.0%} of a forward of the target"
    if share > work.first:
        return Finding("bad", said, "that is more than it earns: use a smaller drafter, or a method without one")
    return Finding("good", said)
