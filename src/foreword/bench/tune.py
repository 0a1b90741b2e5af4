"""Finds which halves of a target's layers to leave out, and says by the clock whether that pays on this machine.

Knows the order of things; knows nothing about how masks are chosen, read or timed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from foreword import family
from foreword.bench.masks import Examiner, written
from foreword.bench.prices import Prices, timed
from foreword.bench.prompts import load
from foreword.bench.run import render
from foreword.bench.runoff import Runoff, runoff
from foreword.bench.study import MaskStudy, Watch, installed
from foreword.bench.trials import TrialsFile
from foreword.disk import writable
from foreword.draft import PLAIN
from foreword.draft.layers import Mask, save, skipped
from foreword.errors import InvalidRequest
from foreword.llm import LLM
from foreword.model import Tokenizer
from foreword.params import SamplingParams, whole

TRIALS = ".trials.jsonl"
HANDS = 3
"""Prompts are dealt out: to search on, to choose among the best on, and to measure the chosen one on."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to search for, and how long."""

    out: Path
    """Gets the mask; the trials are kept beside it."""
    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    trials: int = 200
    prompts: int = 12
    """In each hand, at most."""
    tokens: int = 64
    """At most this long answers."""
    temperature: float = 0.0
    seed: int = 0
    resume: bool = False
    dtype: str = "auto"
    device: str = "auto"

    @property
    def journal(self) -> Path:
        """The file of the trials."""
        return self.out.with_name(self.out.name.removesuffix(".json") + TRIALS)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of it."""

    mask: Mask
    halves: int
    """Of the target."""
    trials: int
    given_up: int
    expected: float
    """Tokens per forward's time over plain decoding, by the texts that were searched on and the prices."""
    prices: Prices
    runoff: Runoff | None
    """By the clock; None where Ctrl-C came before its end."""

    @property
    def pays(self) -> bool:
        """Faster than plain decoding, beyond what chance explains."""
        return self.runoff is not None and self.runoff.over_plain.low > 1

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        raced = None
        if self.runoff is not None:
            raced = asdict(self.runoff) | _named(self.runoff.mask)
            raced["entries"] = [asdict(entry) | _named(entry.mask) for entry in self.runoff.entries]
            for found in (raced, *raced["entries"]):
                del found["mask"]
        return _named(self.mask) | {
            "halves": self.halves,
            "trials": self.trials,
            "given_up": self.given_up,
            "expected": self.expected,
            "guess": self.prices.guess(self.mask),
            "prices": {"attention": self.prices.halves[0], "mlp": self.prices.halves[1], "checks": self.prices.checks},
            "runoff": raced,
            "pays": self.pays,
        }


def _named(mask: Mask) -> dict[str, list[int]]:
    """By the numbers of layers, as in the file."""
    skip = skipped(mask)
    return {"attention": sorted(skip.attention), "mlp": sorted(skip.mlp)}


def tune(
    asked: Asked,
    prompts: List[List[int]],
    *,
    watch: Watch = lambda *_: None,
    note: Note = lambda _: None,
    price: Callable[[Examiner], Prices] | None = None,
) -> Tuned:
    """Search, time the best against plain decoding, and write the mask to `asked.out` whether it pays or not.

    `prompts` are token ids. `price` says what halves cost; None times them. Ctrl-C ends the search and keeps the best
    so far. Raises InvalidRequest or ModelError before any work where something does not fit.
    """
    check(asked)
    hands = deal(prompts, asked.prompts, asked.seed)
    llm = LLM(asked.target, method=PLAIN, dtype=asked.dtype, device=asked.device)
    layers = llm.target.hf.config.get_text_config().num_hidden_layers
    Examiner(llm.target, [])  # refuses a target whose layers cannot be left out
    file = TrialsFile(asked.journal, _about(asked, llm, prompts))
    note(f"{llm.target.name}: {layers} layers, {llm.target.capability.way}; writing {len(hands[0])} texts to search on")
    texts = written(llm, hands[0], asked.temperature, asked.tokens, asked.seed)
    if not texts:
        raise InvalidRequest("the target answers none of these prompts with more than a token; give others")
    examiner = Examiner(llm.target, texts)
    with examiner.open():
        if file.prices is None:
            found = price(examiner) if price else timed(llm.target, examiner.twin, examiner.sample)
            file.keep(asdict(found))
        prices = Prices(**{name: tuple(shares) for name, shares in (file.prices or {}).items()})
        study = MaskStudy(layers, asked.seed, file)
        ended = study.run(lambda mask: examiner.values(mask, prices), asked.trials, watch)
    best = file.best
    if best is None:
        raise InvalidRequest("stopped before the first trial ended; nothing was written")
    save(best.mask, asked.out)
    mask, raced = best.mask, None
    if ended:
        try:
            raced = runoff(llm, [one.mask for one in file.ranked], hands[1:], asked, note)
            mask = raced.mask
            save(mask, asked.out)
        except KeyboardInterrupt:
            note("stopped while the best masks were timed")
    worth = next(one.value for one in file.ranked if one.mask == mask)
    given_up = sum(not one.whole for one in file.tried)
    return Tuned(mask, 2 * layers, len(file.tried), given_up, worth, prices, raced)


def check(asked: Asked) -> None:
    """Raise InvalidRequest for what cannot be done, before anything is loaded."""
    installed()
    for name in ("trials", "prompts", "tokens"):
        whole(2 if name == "tokens" else 1)(name, getattr(asked, name))
    SamplingParams(temperature=asked.temperature, seed=asked.seed)
    for path in (asked.out, asked.journal):
        writable(path)
    there = [path for path in (asked.out, asked.journal) if path.exists()]
    if there and not asked.resume:
        raise InvalidRequest(f"{there[0]} exists already; go on with --resume, or name another file")


def deal(prompts: List[List[int]], most: int, seed: int) -> tuple[list[List[int]], ...]:
    """`HANDS` hands of at most so many prompts, no prompt in two of them. Raises InvalidRequest for too few."""
    if len(prompts) < HANDS:
        raise InvalidRequest(f"tuning needs at least {HANDS} texts, got {len(prompts)}; give more data")
    order = Random(seed).sample(range(len(prompts)), len(prompts))
    size = min(most, len(prompts) // HANDS)
    return tuple([prompts[place] for place in order[hand * size : (hand + 1) * size]] for hand in range(HANDS))


def usual(tokenizer: Tokenizer, target: str | None) -> list[List[int]]:
    """The prompts of the benchmark, as token ids: those the family was trained for, or for another target the rest."""
    return [list(render(tokenizer, prompt)) for prompt in load("in-domain" if target is None else "out-of-domain")]


def _about(asked: Asked, llm: LLM, prompts: List[List[int]]) -> dict[str, Any]:
    """What the worth of a mask depends on."""
    digest = blake2b(repr([list(prompt) for prompt in prompts]).encode(), digest_size=12).hexdigest()
    names = ("prompts", "tokens", "temperature", "seed")
    return {
        "target": "family" if asked.target is None or asked.target == str(family.target()) else asked.target,
        "way": llm.target.capability.way,
        "dtype": str(llm.target.dtype),
        "data": digest,
    } | {name: getattr(asked, name) for name in names}
