"""Tuning of self-speculative drafting: searches halves of layers to leave out and times
the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from foreword import bundled
from foreword.api.llm import LLM
from foreword.bench.prompts import load
from foreword.bench.run import render
from foreword.checks import whole
from foreword.draft.self_speculative.layers import Mask, save, skipped
from foreword.errors import InvalidRequest
from foreword.files import check_writable
from foreword.model import Tokenizer, check_decoder_only
from foreword.options import LoadingOptions
from foreword.registry import PLAIN
from foreword.tune.cost import Prices, timed
from foreword.tune.final import FinalComparison, compare_finalists
from foreword.tune.journal import TrialsFile
from foreword.tune.replay import MaskReplay, written
from foreword.tune.search import MaskStudy, Watch, installed
from foreword.types.params import SamplingParams

TRIALS = ".trials.jsonl"
SPLITS = 3
"""Number of disjoint sets of prompts: for the search, the selection among the best, and
the final measurement.
"""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(LoadingOptions):
    """Options of a tuning."""

    out: Path
    """File of the mask; the trials are kept beside it."""
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    trials: int = 200
    prompts: int = 12
    """Maximum number in each split."""
    tokens: int = 64
    """Maximum number of new tokens in each answer."""
    temperature: float = 0.0
    seed: int = 0
    resume: bool = False

    @property
    def journal(self) -> Path:
        """The file of the trials."""
        return self.out.with_name(self.out.name.removesuffix(".json") + TRIALS)


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a tuning."""

    mask: Mask
    halves: int
    """Number of halves of the target."""
    trials: int
    given_up: int
    expected: float
    """Expected speed-up over plain decoding, from the texts of the search and the
    costs.
    """
    prices: Prices
    runoff: FinalComparison | None
    """Timed comparison; None if Ctrl-C stopped it."""

    @property
    def pays(self) -> bool:
        """Whether it is significantly faster than plain decoding (95 % interval above
        1).
        """
        return self.runoff is not None and self.runoff.over_plain.low > 1

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        final = None
        if self.runoff is not None:
            final = asdict(self.runoff) | _named(self.runoff.mask)
            final["entries"] = [
                asdict(entry) | _named(entry.mask) for entry in self.runoff.entries
            ]
            for record in (final, *final["entries"]):
                del record["mask"]
        return _named(self.mask) | {
            "halves": self.halves,
            "trials": self.trials,
            "given_up": self.given_up,
            "expected": self.expected,
            "propose": self.prices.propose(self.mask),
            "prices": {
                "attention": self.prices.halves[0],
                "mlp": self.prices.halves[1],
                "checks": self.prices.checks,
            },
            "runoff": final,
            "pays": self.pays,
        }


def _named(mask: Mask) -> dict[str, list[int]]:
    """Return a mask as numbers of layers, as in its file."""
    skip = skipped(mask)
    return {"attention": sorted(skip.attention), "mlp": sorted(skip.mlp)}


def tune(
    options: TuneOptions,
    prompts: Sequence[Sequence[int]],
    *,
    watch: Watch = lambda *_: None,
    note: Note = lambda _: None,
    price: Callable[[MaskReplay], Prices] | None = None,
) -> Tuned:
    """Search, time the best against plain decoding, and write the mask to
    `options.out`, even if it is not faster.

    `prompts` are token ids. `price` returns the costs of halves; None times them.
    Ctrl-C ends the search and keeps the best so far. Raises InvalidRequest or
    ModelError before any work if the options cannot be used.
    """
    check(options)
    splits = split_prompts(prompts, options.prompts, options.seed)
    how = {
        name: getattr(options, name)
        for name in ("dtype", "device", "trust_remote_code")
    }
    llm = LLM(options.target, method=PLAIN, **how)
    check_decoder_only(llm.target, "tune its layers")
    layers = llm.target.hf.config.get_text_config().num_hidden_layers
    MaskReplay(llm.target, [])  # raises if the target's layers cannot be left out
    file = TrialsFile(options.journal, _about(options, llm, prompts))
    note(
        f"{llm.target.name}: {layers} layers, {llm.target.capability.backend}; "
        f"generating {len(splits[0])} answers for the search"
    )
    texts = written(llm, splits[0], options.temperature, options.tokens, options.seed)
    if not texts:
        raise InvalidRequest(
            "cannot tune: the target answers none of these prompts with more than a "
            "token. Give others"
        )
    replay = MaskReplay(llm.target, texts)
    with replay.open():
        prices = _prices(file, llm, replay, price)
        study = MaskStudy(layers, options.seed, file)
        ended = study.run(
            lambda mask: replay.values(mask, prices), options.trials, watch
        )
    best = file.best
    if best is None:
        raise InvalidRequest(
            "cannot write a mask: stopped before the first trial ended"
        )
    save(best.mask, options.out)
    final = _final(file, llm, splits[1:], options, note) if ended else None
    mask = final.mask if final else best.mask
    worth = next(one.value for one in file.ranked if one.mask == mask)
    given_up = sum(not one.whole for one in file.tried)
    return Tuned(mask, 2 * layers, len(file.tried), given_up, worth, prices, final)


def _prices(
    file: TrialsFile,
    llm: LLM,
    replay: MaskReplay,
    price: Callable[[MaskReplay], Prices] | None,
) -> Prices:
    """Return the costs that an earlier run kept, else new ones, which are kept."""
    if file.prices is None:
        found = (
            price(replay) if price else timed(llm.target, replay.twin, replay.sample)
        )
        file.keep(asdict(found))
    kept = file.prices or {}
    return Prices(**{name: tuple(shares) for name, shares in kept.items()})


def _final(
    file: TrialsFile,
    llm: LLM,
    splits: tuple[list[Sequence[int]], ...],
    options: TuneOptions,
    note: Note,
) -> FinalComparison | None:
    """Time the best masks and write the fastest; None if Ctrl-C stopped it."""
    masks = [one.mask for one in file.ranked]
    final = None
    try:
        final = compare_finalists(llm, masks, splits, options, note)
        save(final.mask, options.out)
    except KeyboardInterrupt:
        note("stopped while timing the best masks")
    return final


def check(options: TuneOptions) -> None:
    """Raise InvalidRequest for invalid options, before anything is loaded."""
    installed()
    for name in ("trials", "prompts", "tokens"):
        whole(2 if name == "tokens" else 1)(name, getattr(options, name))
    SamplingParams(temperature=options.temperature, seed=options.seed)
    for path in (options.out, options.journal):
        check_writable(path)
    existing = [path for path in (options.out, options.journal) if path.exists()]
    if existing and not options.resume:
        raise InvalidRequest(
            f"cannot write {existing[0]}: it exists. Continue with '--resume', or name "
            "another file"
        )


def split_prompts(
    prompts: Sequence[Sequence[int]], most: int, seed: int
) -> tuple[list[Sequence[int]], ...]:
    """Return `SPLITS` disjoint sets of at most `most` prompts each.

    Raises InvalidRequest for too few prompts.
    """
    if len(prompts) < SPLITS:
        raise InvalidRequest(
            f"cannot tune: need at least {SPLITS} texts, got {len(prompts)}. Give more "
            "data"
        )
    order = Random(seed).sample(range(len(prompts)), len(prompts))
    size = min(most, len(prompts) // SPLITS)
    return tuple(
        [prompts[place] for place in order[split * size : (split + 1) * size]]
        for split in range(SPLITS)
    )


def default_prompts(tokenizer: Tokenizer, target: str | None) -> list[Sequence[int]]:
    """Return the benchmark's prompts as token ids: in-domain for the bundled target,
    else out-of-domain.
    """
    return [
        list(render(tokenizer, prompt))
        for prompt in load("in-domain" if target is None else "out-of-domain")
    ]


def _about(
    options: TuneOptions, llm: LLM, prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the settings that the value of a mask depends on."""
    digest = blake2b(
        repr([list(prompt) for prompt in prompts]).encode(), digest_size=12
    ).hexdigest()
    names = ("prompts", "tokens", "temperature", "seed")
    return {
        "target": "family"
        if options.target is None or options.target == str(bundled.target())
        else options.target,
        "backend": llm.target.capability.backend,
        "dtype": str(llm.target.dtype),
        "data": digest,
    } | {name: getattr(options, name) for name in names}
