"""Tuning of self-speculative drafting: a search for halves of layers to leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter, sleep
from typing import Any

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
from foreword.tune.replay import MaskReplay, Text
from foreword.types.params import SamplingParams

ROUNDS = 2
"""Timed runs of every prompt."""
TOGETHER = 8
"""Masks, about, that combine halves which did little harm alone."""
BESIDE = 100
"""Neighbours drawn for each trial, at most: a small model has few masks."""

Prompts = Sequence[Sequence[int]]
"""Token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(LoadingOptions):
    """Options of a tuning, and the file of the mask."""

    out: Path
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    trials: int = 200
    prompts: int = 12
    """Most for the search, and for the timing."""
    tokens: int = 64
    """Most of each answer."""
    temperature: float = 0.0
    seed: int = 0
    resume: bool = False
    """Search on from the mask in `out`."""


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
    """Measured on other prompts; None if Ctrl-C came first."""

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain decoding (95 % interval above 1)."""
        return self.over_plain is not None and self.over_plain.low > 1

    def as_json(self) -> dict[str, Any]:
        """Return plain values; the mask as in its file."""
        values = asdict(self) | masks.named(self.mask) | {"pays": self.pays}
        return {name: values[name] for name in values if name != "mask"}


@dataclass(slots=True)
class MaskSearch:
    """Search for the mask of the highest value: early exits, every half alone, the
    least harmful halves together, then neighbours of the best.
    """

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
        """Yield masks to try, some of which were tried."""
        yield from self._informative(trials) if known is None else (known,)
        dice = Random(self.seed if known is None else None)
        for _ in range(trials * BESIDE):
            yield masks.neighbour(self.best, self.halves, dice)

    def _informative(self, trials: int) -> Iterator[Mask]:
        layers = self.halves // 2
        yield masks.first(layers)
        yield masks.exit_after(layers - 1, layers)
        yield masks.exit_after(layers - layers // 4, layers)
        yield masks.exit_after(layers - layers // 2, layers)
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
    if not (size := min(options.prompts, len(prompts) // 2)):
        raise InvalidRequest("cannot tune: need at least 2 texts. Give more data")
    order = Random(options.seed).sample(list(prompts), 2 * size)
    first, second = order[:size], order[size:]
    how = {name: getattr(options, name) for name in LoadingOptions.__slots__}
    llm = LLM(options.target, method=PLAIN, draft={masks.NAME: options.out}, **how)
    check_decoder_only(llm.target, "tune its layers")
    replay, over_plain = MaskReplay(llm.target), None
    mask = masks.load(options.out, llm.target) if options.resume else None
    note(f"{llm.target.name}: answering {len(first)} prompts for the search")
    texts = [_answer(llm, one, n, options, PLAIN) for n, one in enumerate(first)]
    texts = [text for text in texts if len(text.tokens) > text.prompt + 1]
    if not texts:
        raise InvalidRequest("cannot tune: answers are too short. Give other prompts")
    value = partial(replay.value, texts)
    search = MaskSearch(value, len(replay.halves), options.seed)
    try:
        with replay.open(texts):
            for best in search.run(options.trials, mask):
                masks.save(best, options.out)
                watch(len(search.tried), search.tried[best])
        note(f"timing the best against plain decoding, on {len(second)} other prompts")
        over_plain = _measured(llm, second, options)
    except KeyboardInterrupt:
        note("stopped")
    if not search.tried:
        raise InvalidRequest("cannot write a mask: no trial ended. Let one end")
    best, tried = search.best, search.tried
    cost = masks.cost_without(best, replay.halves)
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
                if turn:
                    took = perf_counter() - started
                    costs[arm, number] += len(text.tokens) - text.prompt, took
    return speedup(costs[1], costs[0])


def _answer(
    llm: LLM, prompt: Sequence[int], number: int, options: TuneOptions, method: str
) -> Text:
    """Answer a prompt, cut at the start to fit, with a seed of its own."""
    cut = list(prompt)[-(llm.target.context - options.tokens - DEEPEST) :]
    heat, seed, most = options.temperature, options.seed + number, options.tokens
    params = SamplingParams(temperature=heat, seed=seed, max_tokens=most, method=method)
    (answer,) = llm.generate([cut], params)
    return Text(len(cut), cut + answer.tokens, params)


def check(options: TuneOptions) -> None:
    """Raise InvalidRequest for invalid options, before anything is loaded."""
    for name, least in (("trials", 1), ("prompts", 1), ("tokens", 2)):
        whole(least)(name, getattr(options, name))
    SamplingParams(temperature=options.temperature, seed=options.seed)
    check_writable(options.out)
    if options.out.exists() and not options.resume:
        found = f"cannot write {options.out}: it exists"
        raise InvalidRequest(f"{found}. Continue with '--resume', or name another file")
