"""Who takes part: loads the weights once, enlarges them when asked, and builds every contender on them.

Knows how contenders are made; knows nothing about prompts or timing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from foreword import family
from foreword.bench import engines, peers
from foreword.bench.contender import EngineContender
from foreword.bench.converted import Source
from foreword.bench.converted import source as convertible
from foreword.bench.inflate import SHAPES, Shape, inflate, shape_of
from foreword.bench.inflate_heads import inflate_head
from foreword.bench.leftout import LeftOut
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.oracle import NODES, Oracle
from foreword.bench.trial import Contender
from foreword.draft import HEAD, METHODS, MODEL, PLAIN, WITH_DRAFT, WITHOUT_DRAFT, Drafter, Recipe, method
from foreword.draft.learning import taught
from foreword.draft.recipe import shipped
from foreword.engine import Engine
from foreword.errors import InvalidRequest, ModelError, UnknownMethod
from foreword.model import Model, check_same, load_tokenizer, measure
from foreword.model.config import read_config
from foreword.model.loading import load_weights
from foreword.model.model import DTYPES
from foreword.model.native import usual
from foreword.scheduler import Scheduler
from foreword.verify import rule
from foreword.width import Fixed, Measure, Width

PLAIN_ROW = "plain"
BASELINES = (PLAIN_ROW, peers.GENERATE)
"""Always measured: every ratio is over one of them."""
GUESSING = tuple(name for name in METHODS if name != PLAIN)
USUAL = (WITHOUT_DRAFT, WITH_DRAFT)
"""Methods that are measured when none is named."""
ALL = "all"
OUTSIDE = (*peers.NAMES, *engines.NAMES)
"""Contenders that are not ours: their insides cannot be seen, and what they draw is another draw."""
CONTENDERS = (PLAIN_ROW, *GUESSING, ORACLE, *OUTSIDE)
"""Every name that may be asked for, in the order of the rows."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The pair that is measured, by where it lies and how it is loaded."""

    target: str | Path
    draft: str | Path | None
    dtype: torch.dtype
    shape: str | None
    """A name in SHAPES; None leaves the target as it is."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """What a row drafts with, by its name, where that is not the draft model: a datastore, a file of past answers …"""

    @property
    def name(self) -> str:
        """What the report calls the target."""
        name = "the family" if self.target == family.target() else str(self.target)
        return f"{name} as {self.shape}" if self.shape else name

    @property
    def original(self) -> Shape:
        """The sizes of the target before it is enlarged."""
        return shape_of(LlamaConfig.from_pretrained(self.target))

    def usual(self, name: str) -> str | Path | None:
        """What a method that needs something drafts with: the draft model; of the family that ships, its own head."""
        found = method(name)
        if found.takes == MODEL:
            return self.draft
        return shipped(found, name) if self.target == family.target() else None

    def load(self, device: torch.device | None = None, context: int = 0) -> PreTrainedModel:
        """The target as transformers has it, on the CPU unless named; enlarged, when asked, where it will stay.

        An enlarged one reads `context` tokens at least.
        """
        model = _load(self.target, self.dtype)
        nn.Module.to(model, device)
        if self.shape is None:
            return model
        if not isinstance(model, LlamaForCausalLM):
            raise ModelError(f"only a Llama can be enlarged, and {self.target} is a {type(model).__name__}")
        return inflate(model, SHAPES[self.shape], context=context)


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contenders, in the order of their rows."""

    contenders: tuple[Contender, ...]
    oracle: Oracle
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Tokens that the target reads at most."""


def weights(target: str | None, draft: str | None, dtype: str, shape: str | None) -> Weights:
    """The pair to measure: the family that ships unless named. Raises InvalidRequest or ModelError for bad names."""
    if shape is not None and shape not in SHAPES:
        raise InvalidRequest(f"there is no shape {shape!r} to inflate to; choose one of {', '.join(SHAPES)}")
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}")
    kind = DTYPES[dtype] if dtype != "auto" else usual(_architectures(target or family.target()))[0]
    if target is None:
        return Weights(family.target(), draft or family.draft(), kind, shape)
    return Weights(target, draft, kind, shape)


def wanted(methods: List[str] | None, quick: bool, others: List[str] = ()) -> tuple[str, ...]:
    """Names of the rows: the usual ones, or those asked for and the baselines; ALL stands for every method.

    `others` are engines that take part as well. Methods that join others are written like calls, as everywhere. Raises
    UnknownMethod for other names, and InvalidRequest for engines that do not exist or are not installed.
    """
    beside = engines.contenders(others)
    if methods is None:
        usual = (*USUAL, ORACLE, *peers.NAMES, *beside)
        return (PLAIN_ROW, *(name for name in usual if not (quick and name == peers.LOOKUP)))
    engines.check(methods)
    names = [PLAIN_ROW if name == PLAIN else name for name in methods]
    names = [name for asked in names for name in (GUESSING if asked == ALL else (asked,))]
    made_here = [name for name in dict.fromkeys(names) if name not in CONTENDERS]
    for name in made_here:
        if not isinstance(method(name), Recipe):
            raise UnknownMethod(f"there is no contender {name!r}; choose from {', '.join(CONTENDERS)}")
    first = [name for name in CONTENDERS if name in (*names, *BASELINES, *beside)]
    return (*first[:1], *made_here, *first[1:])


def lineup(
    source: Weights, names: List[str], out: LeftOut, note: Callable[[str], None], decides: Callable[[Measure], Width]
) -> Lineup:
    """Build the contenders of these names, except those that cannot run with these weights.

    `note` is told what takes long; `decides` makes what decides how much our methods guess.
    """
    tokenizer = load_tokenizer(source.target)
    untouched = source.load()
    target = Model(copy.deepcopy(untouched), source.name)  # packs its layers in place, so the peers get their own
    oracle, cost = Oracle(target.vocab), measure(target)
    pair = engines.Pair(partial(convertible, source.name, untouched, tokenizer), partial(_draft, source), note)
    makers: dict[str, Callable[[], Contender]] = {}
    for name in names:
        if name in OUTSIDE:
            peer = name in peers.NAMES
            makers[name] = partial(_peer, name, untouched, source) if peer else partial(engines.make, name, pair)
            continue
        with out.unless(name):
            drafter = oracle if name == ORACLE else _drafter(name, target, tokenizer, source)
            wide = Fixed(NODES) if name == ORACLE else Fixed(0) if name == PLAIN_ROW else decides(lambda: cost)
            engine = Engine(target, drafter, rule("match"), wide, Scheduler(slots=1))
            makers[name] = partial(EngineContender, name, engine, tokenizer)
    contenders: list[Contender] = []
    for name, make in makers.items():  # after all drafters: the clock that contenders put around a model hides it
        with out.unless(name):
            contenders.append(make())
    return Lineup(tuple(contenders), oracle, tokenizer, target.context)


def _drafter(name: str, target: Model, tokenizer: PreTrainedTokenizerBase, source: Weights) -> Drafter:
    """A method that can do without a draft model gets none. Raises InvalidRequest where it needs what is not there."""
    found = method(PLAIN if name == PLAIN_ROW else name)
    given = source.sources.get(name, source.usual(name) if found.needs else None)
    if found.needs and given is None:
        raise InvalidRequest(f"it needs {found.takes}, and none was given; name one with --source {name}=PATH")
    if source.shape is None or given is None or found.takes != HEAD:
        return taught(found.load(given, target, tokenizer), target, None)
    with TemporaryDirectory() as folder:
        inflate_head(given, source.original, SHAPES[source.shape]).write(Path(folder))
        return found.load(folder, target, tokenizer)


def _peer(name: str, target: PreTrainedModel, source: Weights) -> peers.Peer:
    if name == peers.ASSISTED:
        if source.draft is None:
            raise InvalidRequest("it needs a draft model; name one")
        return peers.assisted(target, _load(source.draft, source.dtype))
    return peers.lookup(target) if name == peers.LOOKUP else peers.generate(target)


def _draft(source: Weights) -> Source:
    """The draft model, to be converted. Raises InvalidRequest where none was named."""
    if source.draft is None:
        raise InvalidRequest("it needs a draft model; name one")
    tokenizer = load_tokenizer(source.draft)
    check_same(load_tokenizer(source.target), tokenizer)
    return convertible(f"the draft model of {source.name}", _load(source.draft, source.dtype), tokenizer)


def _architectures(source: str | Path) -> List[str] | None:
    return read_config(source).architectures


def _load(source: str | Path, dtype: torch.dtype) -> PreTrainedModel:
    return load_weights(source, read_config(source), dtype).eval()
