"""The certificate of a target and its drafts on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from foreword.api.llm import LLM
from foreword.model.seq2seq import check_decoder_only
from foreword.native.machine import machine, versions
from foreword.options import ModelOptions, keywords
from foreword.registry import DEFAULT_RULE, PLAIN, RULES
from foreword.verify import Rule
from foreword_lab.certify import worlds
from foreword_lab.certify.bits import bits_check
from foreword_lab.certify.cases import cases
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.drafting import Drafting, load_all
from foreword_lab.certify.enumeration import bias
from foreword_lab.certify.equality import SameText
from foreword_lab.certify.report import Certificate, Check
from foreword_lab.certify.runs import reference
from foreword_lab.certify.sampling import Sampling, pairs
from foreword_lab.certify.setups import keys_of, usable

TEXT_SHARE = 0.5
"""Share of the time for equal texts, enumeration included; the rest is for samples."""
LEAST, LEAST_QUICK = 32, 128
"""Samples of each method and rule, however long they take; a quick run has one rule."""
QUICK_TURNS = 2
"""Turns of a quick run, which leaves the conditions of others out."""
NO_TIME = "the run was too short"
MOST = 200_000
"""Tokens. More hardly find more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions(ModelOptions):
    """Options of a certificate."""

    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    """Empty = the drafts' own, and all that need nothing."""
    minutes: float = 3.0
    """About how long it takes; every check is made once in any case."""
    quick: bool = False
    """Each check once."""
    seed: int = 0


def certify(
    options: CertifyOptions, note: Callable[[str], None] = lambda _: None
) -> Certificate:
    """Load a pair and check it.

    Raises ModelError or InvalidRequest, with the reason, if it cannot be loaded.
    """
    loading = {
        name: value
        for name, value in keywords(options).items()
        if name in ModelOptions.__dataclass_fields__
    }
    llm = LLM(options.target, method=PLAIN, **loading)
    with llm:
        check_decoder_only(llm.target.seq2seq, llm.target.name, "certify drafting")
        bundled = options.target is None
        draftings = load_all(llm, options.drafts, options.methods, bundled=bundled)
        return examine(llm, draftings, options, note)


def examine(
    llm: LLM,
    draftings: list[Drafting],
    options: CertifyOptions,
    note: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Check drafters that are loaded."""
    clock = Clock.of(options.minutes, note, quick=options.quick)
    checks = [
        *_rules(clock, options.seed),
        *_bits(llm, clock),
        *_texts(llm, draftings, options, clock),
        *_samples(llm, draftings, options, clock),
    ]
    target = llm.target
    subject = {
        "target": target.name,
        "backend": target.capability.backend,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "drafts": list(options.drafts),
        "methods": [one.name for one in draftings],
    }
    used = machine(str(target.device)), versions()
    return Certificate.of(subject, checks, options.seed, clock, *used)


def _rules(clock: Clock, seed: int) -> list[Check]:
    clock.tell("exact distributions of the rules")
    return [check_rule(name, seed) for name in RULES.own]


def _bits(llm: LLM, clock: Clock) -> list[Check]:
    clock.tell("bits of forwards")
    return bits_check(llm, quick=clock.is_quick)


def _texts(
    llm: LLM, draftings: list[Drafting], options: CertifyOptions, clock: Clock
) -> list[Check]:
    """Compare texts, turn after turn, each under another setup."""
    setups, absent = usable(llm.target)
    missing = {name: NO_TIME for one in setups for name in one.conditions} | absent
    comparisons = [SameText(one, missing) for one in draftings]
    turn = 0
    while turn < (QUICK_TURNS if options.quick else 1) or clock.before(TEXT_SHARE):
        setup = setups[turn % len(setups)]
        requests = cases(llm, turn, options.seed)
        with keys_of(llm.target, setup.conditions):
            plain = reference(llm, requests)
            for comparison in comparisons:
                if turn and not (options.quick or clock.before(TEXT_SHARE)):
                    break
                clock.tell(f"same text, turn {turn + 1}, {comparison.drafting.name}")
                comparison.compare(llm, requests, plain, setup)
        turn += 1
    return [one.check() for one in comparisons]


def _samples(
    llm: LLM, draftings: list[Drafting], options: CertifyOptions, clock: Clock
) -> list[Check]:
    """Sample every method under every rule in turn."""
    rules = (DEFAULT_RULE,) if options.quick else RULES.own
    sampling = Sampling(llm, pairs(draftings, rules), options.seed)
    least = LEAST_QUICK if options.quick else LEAST
    while _goes_on(sampling, least, clock):
        clock.tell(f"sampled tokens, {sampling.ledger.tokens:,}")
        for index in range(len(sampling.pairs)):
            if _goes_on(sampling, least, clock):
                sampling.sample(index)
    return [sampling.check()]


def _goes_on(sampling: Sampling, least: int, clock: Clock) -> bool:
    if not sampling.pairs or sampling.ledger.differs:
        return False
    if min(sampling.samples) < least:
        return True
    return sampling.ledger.tokens < MOST and clock.before(1.0)


EXACT = 1e-9
"""Total variation. The precision of the search for thresholds."""
VOCAB, DEPTH = 3, 2
"""Tokens of the vocabulary, and of the longest draft path."""


def check_rule(name: str, seed: int) -> Check:
    """Return whether a rule writes what the target would have written, exactly."""
    rule = RULES[name]
    world = worlds.World.random(seed, VOCAB, DEPTH)
    with _one_thread():
        variations = {
            kind: bias(rule.verify, drafting, world, rule.shares_noise)
            for kind, drafting in _draftings(rule).items()
        }
    worst = max(variations.values())
    size = "below 1e-9" if worst < EXACT else f"{worst:.2g}"
    return Check(
        f"exact distribution: rule {name}",
        "consistent" if worst < EXACT else "differs",
        f"total variation {size}, over all drafts and all noise",
        {"total variation": variations, "vocabulary": VOCAB, "depth": DEPTH},
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: for such small tensors, more of them only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draftings(rule: Rule) -> dict[str, worlds.Drafting]:
    """Return the kinds of drafts that the rule may be given, by name."""
    kinds: dict[str, worlds.Drafting] = {
        "sampled chain": worlds.drawn,
        "chosen chain": worlds.chosen,
    }
    if rule.trees and not rule.shares_noise:
        distinct = rule.lists == "distinct"
        kinds["sampled tree"] = worlds.drawn_tree(2, 1, distinct=distinct)
    return kinds
