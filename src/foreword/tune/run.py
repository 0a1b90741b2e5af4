"""Tuning of self-speculative drafting: a search for halves of layers to leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter, sleep

import numpy as np

from foreword.api.llm import LLM
from foreword.bench.race import REST, rotated
from foreword.bench.stats import Interval, speedup
from foreword.checks import whole
from foreword.draft.self_speculative import layers as masks
from foreword.draft.self_speculative.layers import DEEPEST, Mask
from foreword.errors import InvalidRequest
from foreword.files import check_writable
from foreword.model import check_decoder_only
from foreword.options import LoadingOptions
from foreword.registry import PLAIN
from foreword.tune.replay import MaskReplay
from foreword.types import Request, SamplingParams

ROUNDS = 2
"""Timed runs of every prompt."""
TOGETHER = 8
"""Masks, about, that combine halves which did little harm alone."""
BESIDE = 100
"""Neighbours drawn for each trial, at most: a small model has few masks."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(LoadingOptions):
    """Options of a tuning; `prompts` of the search and of the timing, each."""

    out: Path
    target: str | None = None
    trials: int = 200
    prompts: int = 12
    tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a tuning."""

    mask: Mask
    trials: int
    expected: float
    """Speed over plain decoding, as the search expects it."""
    propose: float
    """Cost of a draft token in forwards of the target."""
    over_plain: Interval | None
    """On other prompts; None after Ctrl-C."""

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain decoding (95 % interval above 1)."""
        return self.over_plain is not None and self.over_plain.low > 1


@dataclass(slots=True)
class MaskSearch:
    """Search: early exits, halves alone and together, neighbours of the best mask."""

    value: Callable[[Mask], float]
    halves: int
    seed: int = 0
    tried: dict[Mask, float] = field(default_factory=dict)

    @property
    def best(self) -> Mask:
        """The best mask so far."""
        return max(self.tried, key=self.tried.__getitem__)

    def run(self, trials: int, known: Mask | None = None) -> Iterator[Mask]:
        """Try masks, from `known` on; yield the best so far after each."""
        for mask in self._masks(trials, known):
            if len(self.tried) == trials:
                return
            if mask not in self.tried:
                self.tried[mask] = self.value(mask)
                yield self.best

    def _masks(self, trials: int, known: Mask | None) -> Iterator[Mask]:
        """Yield masks to try; some were tried before."""
        yield from self._informative(trials) if known is None else (known,)
        dice = Random(self.seed if known is None else None)
        for _ in range(trials * BESIDE):
            yield masks.neighbour(self.best, self.halves, dice)

    def _informative(self, trials: int) -> Iterator[Mask]:
        layers = self.halves // 2
        yield masks.first(layers)
        for gone in (1, layers // 4, layers // 2):
            yield masks.exit_after(layers - gone, layers)
        if self.halves > trials // 2:
            return  # single halves would take most of the trials
        alone = [frozenset([half]) for half in range(self.halves)]
        yield from alone
        least_harm = sorted(alone, key=lambda mask: -self.tried[mask])
        step = max(1, (self.halves - 2) // TOGETHER)
        for count in range(2, self.halves - 1, step):
            yield frozenset[int]().union(*least_harm[:count])


def tune(
    options: TuneOptions,
    prompts: Prompts,
    *,
    watch: Callable[[int, float], None] = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Search, keep the best mask so far in `options.out`, and time it.

    `watch` gets the number of trials and the best value. Raises InvalidRequest or
    ModelError before any work if the options cannot be used.
    """
    check(options)
    size = min(options.prompts, len(prompts) // 2)
    if not size:
        raise InvalidRequest("cannot tune: need at least 2 texts. Give more data")
    order = Random(options.seed).sample(list(prompts), 2 * size)
    how = {name: getattr(options, name) for name in LoadingOptions.__slots__}
    draft = {masks.NAME: options.out}
    llm = LLM(options.target, method=PLAIN, draft=draft, **how)
    check_decoder_only(llm.target, "tune its layers")
    replay = MaskReplay(llm.target)
    known = masks.load(options.out, llm.target) if options.resume else None
    note(f"{llm.target.name}: answering {size} prompts for the search")
    texts = [_answer(llm, order[n], n, options, PLAIN) for n in range(size)]
    texts = [text for text in texts if len(text.tokens) > text.prompt + 1]
    if not texts:
        raise InvalidRequest("cannot tune: answers are too short. Give other prompts")
    value = partial(replay.value, texts)
    search = MaskSearch(value, len(replay.halves), options.seed)
    tried = search.tried
    over_plain = None
    try:
        with replay.open(texts):
            for best in search.run(options.trials, known):
                masks.save(best, options.out)
                watch(len(tried), tried[best])
        note(f"timing it on {size} other prompts")
        over_plain = _measured(llm, order[size:], options)
    except KeyboardInterrupt:
        note("stopped")
    if not tried:
        raise InvalidRequest("cannot write a mask: no trial ended. Let one end")
    cost = masks.cost_without(best := search.best, replay.halves)
    return Tuned(best, len(tried), tried[best], cost, over_plain)


def _measured(llm: LLM, prompts: Prompts, options: TuneOptions) -> Interval:
    """Time the mask and plain decoding in turn, after a warm-up on every prompt."""
    methods = (PLAIN, masks.NAME)
    costs = np.zeros((len(methods), len(prompts), 2))
    for turn in range(1 + ROUNDS):
        for number, prompt in enumerate(prompts):
            for arm in rotated(range(len(methods)), turn + number):
                sleep(REST)
                started = perf_counter()
                text = _answer(llm, prompt, number, options, methods[arm])
                took = perf_counter() - started
                if turn:
                    costs[arm, number] += len(text.tokens) - text.prompt, took
    return speedup(costs[1], costs[0])


def _answer(
    llm: LLM, prompt: Sequence[int], number: int, options: TuneOptions, method: str
) -> Request:
    """Answer a prompt, cut at the start to fit, with a seed of its own."""
    room = llm.target.context - options.tokens - DEEPEST
    cut = list(prompt)[-room:]
    params = SamplingParams(
        temperature=options.temperature,
        seed=options.seed + number,
        max_tokens=options.tokens,
        method=method,
    )
    (answer,) = llm.generate([cut], params)
    tokens = cut + answer.tokens
    return Request(number, tokens, len(cut), params, params.seed or 0)


def check(options: TuneOptions) -> None:
    """Raise InvalidRequest for invalid options, before anything is loaded."""
    whole(1)("trials", options.trials)
    whole(1)("prompts", options.prompts)
    whole(2)("tokens", options.tokens)
    SamplingParams(temperature=options.temperature, seed=options.seed)
    check_writable(options.out)
    if options.out.exists() and not options.resume:
        found = f"cannot write {options.out}: it exists"
        raise InvalidRequest(f"{found}. Continue with '--resume', or name another file")
