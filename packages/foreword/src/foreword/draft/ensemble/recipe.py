"""The spec of an ensemble, written like a call, and the loading of methods that share
members; names no method.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import cast

from foreword import bundled
from foreword.draft.base import Drafter, Source
from foreword.draft.ensemble.joint import JointDrafter
from foreword.draft.tree.drafter import ModelDrafter
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import HFModel, Model, Tokenizer
from foreword.registry import HEAD, MODEL, Method
from foreword.shared import Shared

Sources = Source | Mapping[str, Source]
"""One source, or one per member by its name."""


def labelled(name: str, source: Sources) -> str:
    """Return a method with its source, the same text in every process."""
    several = isinstance(source, Mapping)
    sources = [*source.values()] if several else [source]
    texts = [_text_of(one) for one in sources if one is not None]
    if not texts:
        return name
    return f"{name} from {' and '.join(texts)}"


def _text_of(source: str | Path | HFModel | Model) -> str:
    if isinstance(source, str | Path):
        path = Path(source)
        if path.exists():
            path = path.resolve()
        return str(path)
    model = source
    if isinstance(model, Model):
        model = model.hf
    name = model.config.name_or_path
    size = model.num_parameters()
    return f"{name or type(model).__name__} of {size} parameters"


def shipped(kind: "type[Drafter] | MethodSpec", name: str) -> Path | None:
    """Return the bundled draft model or head for a method; None if it takes none, or
    none is bundled.
    """
    if kind.about.takes == MODEL:
        return bundled.draft() if kind.about.needs else None
    needed = kind.about.needs or kind.about.takes == HEAD
    return bundled.head(taker(kind, name)) if needed else None


def quantized(drafter: Drafter, target: Model) -> Drafter:
    """Return the drafter, its draft model in int8; the target stays as it is."""
    if isinstance(drafter, JointDrafter):
        for member in drafter.members:
            quantized(member, target)
    if isinstance(drafter, ModelDrafter):
        model = drafter.quantizable
        if model is not None and model.hf is not target.hf:
            model.quantize_int8()
    return drafter


def taker(kind: "type[Drafter] | MethodSpec", name: str) -> str:
    """Return the method that takes the source of this one: itself, or a member."""
    return kind.taker if isinstance(kind, MethodSpec) else name


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """Class and members of an ensemble. Loads like the class of a drafter."""

    kind: type[JointDrafter]
    parts: "tuple[tuple[str, type[Drafter] | MethodSpec], ...]"
    """(name, class or spec) of each member."""

    @property
    def about(self) -> Method:
        """What a member requires as source, else what one accepts."""
        members = [part.about for _, part in self.parts]
        takes = [part.about.takes for _, part in self._by_need]
        return Method(
            f"{self.kind.about.summary}: {', '.join(name for name, _ in self.parts)}",
            takes=next(filter(None, takes), ""),
            needs=any(one.needs for one in members),
            seq2seq=all(one.seq2seq for one in members),
            draws=any(one.draws for one in members),
        )

    @property
    def taker(self) -> str:
        """Name of the member that takes the source, in a nested ensemble too."""
        name, part = next(
            ((name, part) for name, part in self._by_need if part.about.takes),
            ("", None),
        )
        return taker(part, name) if part else ""

    def load(
        self,
        source: Sources,
        target: Model,
        tokenizer: Tokenizer | None,
        loader: "Loader | None" = None,
    ) -> Drafter:
        """Load every member. One source goes to the member that needs it; several are
        given by name.

        `loader` loads the members; without one, they are loaded for this ensemble
        alone. Raises InvalidRequest if a name belongs to no member, or no member takes
        the source; also raises what the members raise.
        """
        sources, loader = self._shared(source), loader or Loader("", self, Shared())
        members = []
        for name, part in self.parts:
            taken = sources.get(name)
            if isinstance(part, MethodSpec) and taken is None:
                leaves = [leaf for leaf in part.leaves if leaf in sources]
                if leaves:
                    taken = cast("Sources", {leaf: sources[leaf] for leaf in leaves})
            member = replace(loader, name=name, kind=part)
            members.append(member.load(taken, target, tokenizer))
        joint = self.kind(members)
        joint.label = " and ".join(member.label for member in members)
        joint.names = tuple(name for name, _ in self.parts)
        return joint

    @property
    def leaves(self) -> tuple[str, ...]:
        """Names of the methods in it, ensembles taken apart."""
        nested = [
            part.leaves if isinstance(part, MethodSpec) else (name,)
            for name, part in self.parts
        ]
        return tuple(dict.fromkeys(chain.from_iterable(nested)))

    @property
    def _by_need(self) -> "list[tuple[str, type[Drafter] | MethodSpec]]":
        return sorted(self.parts, key=lambda part: not part[1].about.needs)

    def _shared(self, source: Sources) -> Mapping[str, Sources]:
        names = [*dict.fromkeys((*(name for name, _ in self.parts), *self.leaves))]
        if isinstance(source, Mapping):
            unknown = sorted(set(source) - set(names))
            if unknown:
                raise InvalidRequest(
                    f"cannot use draft for {unknown[0]!r}: it is none of the members. "
                    f"Name one of {', '.join(names)}"
                )
            return source
        if source is None:
            return {}
        takers = [name for name, part in self._by_need if part.about.takes]
        if not takers:
            raise InvalidRequest(
                f"cannot use draft: none of {', '.join(names)} takes a source. Leave "
                "draft=None"
            )
        return {self.taker: source}


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads one method. A drafter in memory, alone or as the member of an ensemble, is
    not loaded again.

    Its state is kept by sequence and follows the text, so several methods can draft
    with it, also in turn for one sequence.
    """

    name: str
    kind: type[Drafter] | MethodSpec
    shared: Shared[Drafter]
    """Drafters in memory, by name and source."""
    finish: Callable[[Drafter], Drafter] = lambda drafter: drafter
    """Called with a drafter that was loaded, before its first use."""
    fallback: bool = False
    """Whether draft tokens of another vocabulary are translated, with a warning."""

    def load(
        self, source: Sources, target: Model, tokenizer: Tokenizer | None
    ) -> Drafter:
        """Return the drafter of the method; several sources are for an ensemble.

        Raises what the method's own `load` raises.
        """
        if isinstance(self.kind, MethodSpec):
            return self.kind.load(source, target, tokenizer, self)
        assert not isinstance(source, Mapping)
        key = (self.name, str(source) if isinstance(source, str | Path) else id(source))
        return self.shared.get(key, partial(self._loaded, source, target, tokenizer))

    def _loaded(
        self, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> Drafter:
        assert not isinstance(self.kind, MethodSpec)
        try:
            drafter = self.kind.load(source, target, tokenizer)
        except VocabularyMismatch:
            if not (self.fallback and isinstance(source, str | Path)):
                raise
            from foreword.draft.cross_vocab import pairing

            pair = pairing.load_pair(source, target, tokenizer)
            warnings.warn(pair.notice, stacklevel=4)
            drafter = pairing.CrossVocabularyDrafter(pair)
        drafter = self.finish(drafter)
        drafter.label = labelled(self.name, source)
        return drafter
