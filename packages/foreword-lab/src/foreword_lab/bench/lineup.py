"""The entries of a benchmark: loads the weights once, enlarges them if requested, and
builds every entry on them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from foreword import bundled
from foreword.budget import DraftBudget, FixedBudget, Measure
from foreword.draft import Drafter, method
from foreword.draft.ensemble.recipe import quantized, shipped
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, check_same, load_tokenizer, measure
from foreword.model.executors.native.supported import usual
from foreword.model.loading import hub
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.loading.options import DTYPES, device_named
from foreword.registry import (
    HEAD,
    METHODS,
    MODEL,
    PLAIN,
)
from foreword.verify import rule
from foreword_lab.bench.engine_entry import EngineEntry, watched
from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.inflate.heads import inflate_head
from foreword_lab.bench.inflate.model import SHAPES, Shape, inflate, shape_of
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.oracle import NODES, Oracle
from foreword_lab.bench.peers import engines, hf, registry
from foreword_lab.bench.records import Entry
from foreword_lab.bench.timed import clocked
from foreword_train.gguf.source import Source
from foreword_train.gguf.source import source as convertible

PLAIN_ROW = "plain"
DRAFTS = "draft models of other engines"
"""Name beside the names of engines where the report tells how they hold weights."""
SPECULATIVE = tuple(name for name in METHODS.own if name != PLAIN)
OUTSIDE = (*hf.NAMES, *engines.NAMES)
"""Baselines of other engines: hidden rounds, and sampled text unlike ours."""
ENTRIES = (PLAIN_ROW, *SPECULATIVE, ORACLE, *OUTSIDE)
"""Every name of an entry, in the order of the rows."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The measured target and draft model: where they are and how they are loaded."""

    target: str | Path
    draft: str | Path | None
    dtype: torch.dtype
    shape: str | None
    """A name in SHAPES; None leaves the target as it is."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Row name -> what it drafts with instead of the draft model: a datastore, a file
    of past answers …
    """
    trusted: bool = False
    """Whether code in the models' own folders may run."""
    form: str | None = None
    """Form of the target's linear weights, as in `foreword.LLM(weights=)`."""
    offload: str | None = None
    """Folder for packed weights, as in `foreword.LLM(offload_folder=)`; None = none."""
    device: str = "cpu"
    """Where transformers and our methods run."""

    @property
    def name(self) -> str:
        """Name of the target in the report."""
        name = "bundled models" if bundled.is_target(self.target) else str(self.target)
        name = f"{name} as {self.shape}" if self.shape else name
        return f"{name} in {self.form}" if self.form else name

    @property
    def original(self) -> Shape:
        """Sizes of the target before it is enlarged."""
        return shape_of(LlamaConfig.from_pretrained(self.target))

    @property
    def file(self) -> Path | None:
        """GGUF file of the target; None for other targets, and for an enlarged one."""
        return None if self.shape else hub.gguf(self.target)

    def held(self, names: Sequence[str]) -> dict[str, str]:
        """Return engine -> how it holds the target's matrices in a run of these rows,
        and their draft models'.
        """
        dtype, file = str(self.dtype).removeprefix("torch."), self.file
        held = {"foreword": self.form or (file.name if file else dtype)}
        if any(name in hf.NAMES for name in names):
            held["transformers"] = dtype
            if file:
                held["transformers"] += ", of dequantized weights"
        for engine, how in registry.held(names, self.form, file).items():
            held[engine] = how or dtype
        if self.draft is not None:
            draft = hub.gguf(self.draft)
            held[DRAFTS] = draft.name if draft else dtype
        return held

    def default_source(self, name: str) -> str | Path | None:
        """Return what a method drafts with by default: the draft model, or for the
        bundled target its bundled head.
        """
        spec = method(name)
        if spec.about.takes == MODEL:
            return self.draft
        return shipped(spec, name) if bundled.is_target(self.target) else None

    def load(self, context: int = 0, *, filled: bool = True) -> PreTrainedModel:
        """Return the target as a transformers model on the device; enlarged there if
        requested.

        An enlarged Llama has a context of at least `context` tokens; `filled` as for
        `read`. Raises ModelError where the shape is not one of the target's kind.
        """
        model = self.read(self.target, filled=filled)
        if self.shape is None:
            return model
        if not isinstance(model, LlamaForCausalLM):
            raise ModelError(
                f"cannot enlarge {self.target}: it is a {type(model).__name__}. Choose "
                "a Llama"
            )
        return inflate(model, SHAPES[self.shape], context=context)

    def read(self, source: str | Path, *, filled: bool = True) -> PreTrainedModel:
        """Return one of the two models as a transformers model, on the device; unless
        `filled`, without its quantized weights.
        """
        trusted = self.trusted
        config = read_config(source, trust_remote_code=trusted, seq2seq=True)
        model = load_weights(
            source, config, self.dtype, trust_remote_code=trusted, filled=filled
        ).eval()
        if filled:
            nn.Module.to(model, self.device)
        return model

    def model(self) -> Model:
        """Return the target for our methods, loaded as a user loads it."""
        how = {"weights": self.form, "trust_remote_code": self.trusted}
        if self.offload is not None:
            return Model.load(self.target, offload_folder=self.offload, **how)
        return Model.load(self.target, dtype=self.dtype, device=self.device, **how)

    def convertible(
        self, tokenizer: PreTrainedTokenizerBase, target: PreTrainedModel | None = None
    ) -> Source:
        """Return the target for other engines: its GGUF file, or the weights of
        `target`, by default loaded, in as many bits as ours.

        Raises ModelError unless a GGUF file or a Llama.
        """
        if target is None:
            target = self.load(filled=self.file is None)
        return convertible(self.name, target, tokenizer, self.form, self.file)

    def tokenizer(self, source: str | Path) -> PreTrainedTokenizerBase:
        """Return the tokenizer of one of the two models."""
        return load_tokenizer(source, trust_remote_code=self.trusted)


@dataclass(frozen=True, slots=True)
class Lineup:
    """The entries of a run, in the order of their rows."""

    entries: tuple[Entry, ...]
    oracle: Oracle
    tokenizer: PreTrainedTokenizerBase
    context: int
    """Tokens. Context length of the target."""
    loads: Mapping[str, float] = field(default_factory=dict)
    """Entry -> seconds to load its target and what it drafts with."""


def weights(
    target: str | None,
    draft: str | None,
    dtype: str,
    shape: str | None,
    *,
    trusted: bool = False,
    device: str = "cpu",
) -> Weights:
    """Return the pair to measure, by default the bundled models; dtype "auto" is
    bfloat16 on an accelerator.

    Raises InvalidRequest or ModelError for bad names.
    """
    chip = device_named(device)
    if shape is not None and shape not in SHAPES:
        raise InvalidRequest(
            f"cannot inflate to {shape!r}: no such shape. Choose one of "
            f"{', '.join(SHAPES)}"
        )
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelError(
            f"cannot use dtype={dtype!r}: unknown dtype. Choose 'auto' or one of "
            f"{', '.join(DTYPES)}"
        )
    source: str | Path = bundled.target() if target is None else target
    drafts = draft or bundled.draft() if target is None else draft
    if dtype == "auto" and chip.type != "cpu":
        kind = torch.bfloat16
    elif dtype == "auto":
        config = read_config(source, trust_remote_code=trusted, seq2seq=True)
        kind = usual(config.architectures)[0]
    else:
        kind = DTYPES[dtype]
    return Weights(source, drafts, kind, shape, trusted=trusted, device=str(chip))


def lineup(
    source: Weights,
    names: Sequence[str],
    out: Exclusions,
    note: Callable[[str], None],
    make_budget: Callable[[Measure], DraftBudget],
) -> Lineup:
    """Build the entries of these names, without entries that cannot run with
    these weights.

    `note` gets a line before slow steps; `make_budget` builds the draft budget of our
    methods.
    """
    tokenizer = source.tokenizer(source.target)
    (target, own_load), (untouched, other_load) = _targets(source, names)
    oracle, cost = Oracle(target.vocab), measure(target)
    pair = registry.Pair(
        partial(source.convertible, tokenizer, untouched),
        partial(convertible_draft, source),
        note,
    )
    makers: dict[str, Callable[[], Entry]] = {}
    loads = {name: other_load if name in hf.NAMES else 0.0 for name in names}
    for name in names:
        with out.unless(name):
            if name in OUTSIDE:
                makers[name] = _other(name, source, untouched, pair)
                continue
            drafter: Drafter = oracle
            if name != ORACLE:
                made = partial(_drafter, name, target, tokenizer, source)
                drafter, loads[name] = clocked(made)
            loads[name] += own_load
            budget = watched(
                FixedBudget(NODES)
                if name == ORACLE
                else FixedBudget(0)
                if name == PLAIN_ROW
                else make_budget(lambda: cost)
            )
            engine = Engine(target, drafter, rule("match"), budget, Scheduler(slots=1))
            makers[name] = partial(EngineEntry, name, engine, tokenizer)
    entries: list[Entry] = []
    # after all drafters: the timed backend of an entry hides a model's own
    for name, make in makers.items():
        with out.unless(name):
            entry, seconds = clocked(make)
            entries.append(entry)
            loads[name] += seconds
    if source.shape:
        loads = {}  # an enlarged target is made, not loaded
    return Lineup(tuple(entries), oracle, tokenizer, target.context, loads)


def _other(
    name: str, source: Weights, target: PreTrainedModel | None, pair: registry.Pair
) -> Callable[[], Entry]:
    """Return what builds another engine's entry. Raises InvalidRequest for a target
    that may not fit in memory.
    """
    if source.offload is not None:
        raise InvalidRequest("it would hold all weights in memory")
    if target is None or name not in hf.NAMES:
        return partial(registry.make, name, pair)
    draft = partial(source.read, source.draft) if source.draft else None
    return partial(hf.entry, name, target, draft)


def _targets(
    source: Weights, names: Sequence[str]
) -> tuple[tuple[Model, float], tuple[PreTrainedModel | None, float]]:
    """Return the target for our methods, and in memory for other engines, None where
    none of them needs it or it may not fit; each with the seconds of its load.
    """
    if source.shape is None:
        model = clocked(source.model)
        readers = OUTSIDE if source.file is None else hf.NAMES
        needed = source.offload is None and any(name in readers for name in names)
        return model, clocked(source.load) if needed else (None, 0.0)
    untouched = source.load()
    # packs its layers in place, so the baselines get a copy
    target = Model(copy.deepcopy(untouched), source.name)
    target.quantize(source.form)
    target.trust_remote_code = source.trusted
    return (target, 0.0), (untouched, 0.0)


def _drafter(
    name: str, target: Model, tokenizer: PreTrainedTokenizerBase, source: Weights
) -> Drafter:
    """Return a row's drafter. Raises InvalidRequest if its draft model is missing."""
    spec = method(PLAIN if name == PLAIN_ROW else name)
    if target.seq2seq is not None and not spec.about.seq2seq:
        raise InvalidRequest(f"{target.name} is an encoder-decoder")
    needs = spec.about.needs or spec.about.takes == HEAD
    path = source.sources.get(name, source.default_source(name) if needs else None)
    if spec.about.needs and path is None:
        raise InvalidRequest(
            f"it needs {spec.about.takes}, and none was given; name one with --source "
            f"{name}=PATH"
        )
    if source.shape is None or path is None or spec.about.takes != HEAD:
        return quantized(spec.load(path, target, tokenizer), target)
    with TemporaryDirectory() as folder:
        inflate_head(path, source.original, SHAPES[source.shape]).write(Path(folder))
        return spec.load(folder, target, tokenizer)


def convertible_draft(source: Weights) -> Source:
    """Return the draft model for other engines, with the target's tokenizer, which is
    the same. Raises InvalidRequest if none was named.
    """
    if source.draft is None:
        raise InvalidRequest("it needs a draft model; name one")
    tokenizer = source.tokenizer(source.target)
    check_same(tokenizer, source.tokenizer(source.draft))
    file = hub.gguf(source.draft)
    model = source.read(source.draft, filled=file is None)
    name = f"the draft model of {source.name}"
    return convertible(name, model, tokenizer, file=file)
