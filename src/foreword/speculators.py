"""The speculators of one engine: drafters are loaded when a request first names their method, and kept.

Knows methods by their registry and what each is made from; knows nothing about requests' texts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from foreword.draft import MODEL, PLAIN, Recipe
from foreword.draft import method as find_method
from foreword.draft.base import Drafter, Source
from foreword.draft.learning import Learning, taught
from foreword.draft.pairing import load_anyhow
from foreword.draft.recipe import Sources, shipped
from foreword.engine import Engine
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Mode, Model, Tokenizer, measure
from foreword.speculator import Speculator
from foreword.types import SamplingParams
from foreword.verify import Rule
from foreword.verify import rule as find_rule
from foreword.width import Fixed, Measure, Width, policy

Decides = Callable[[Measure], Width]
"""Makes a width for a target whose forwards can be measured."""


class Speculators:
    """Makes what a request asks for: a method, a rule and a width, together."""

    def __init__(
        self, target: Model, tokenizer: Tokenizer, sources: Sources, *, method: str, rule: str, decides: Decides
    ) -> None:
        """`sources` is what the usual method drafts with, or a source for each method by its name.

        `method`, `rule` and `decides` are for requests that name none.
        """
        self._target, self._tokenizer, self._sources = target, tokenizer, sources
        self._method, self._rule, self._decides = method, rule, decides
        self.bundled = False
        """The target is the one that ships, so what ships for it may draft."""
        self._drafters: dict[str, Drafter] = {}
        self._made: dict[tuple[object, ...], Speculator] = {}

    def usual(self, how: Learning | None, *, anyhow: bool) -> tuple[Drafter, Rule, Width]:
        """What requests get that name nothing. `anyhow`: nobody named the method, so a near one will do."""
        drafter = self._drafters[self._method] = self._load(self._method, how, anyhow=anyhow)
        return drafter, self._found(self._method, self._rule), self._width(self._method, self._decides)

    def asked(self, engine: Engine, params: SamplingParams) -> Speculator:
        """The speculator that a request names, or the engine's own.

        Raises UnknownMethod or InvalidRequest where it names what there is not, or what cannot be made.
        """
        key = (params.method, params.rule, params.width, params.nodes)
        if key == (None, None, None, None):
            return engine.usual
        if key not in self._made:
            method, decides = params.method or self._method, self._decides
            if params.width is not None or params.nodes is not None:
                decides = policy(params.width, params.nodes)
            rule, width = self._found(method, params.rule or self._rule), self._width(method, decides)
            if method not in self._drafters:
                self._drafters[method] = self._load(method, None, anyhow=False)
            self._made[key] = engine.speculator(self._drafters[method], rule, width)
        return self._made[key]

    def _found(self, method: str, rule: str) -> Rule:
        return find_rule(rule, draws=find_method(method).draws, trees=self._target.mode is Mode.TREE)

    def _width(self, method: str, decides: Decides) -> Width:
        return Fixed(0) if method == PLAIN else decides(partial(measure, self._target))

    def _load(self, name: str, how: Learning | None, *, anyhow: bool) -> Drafter:
        """A drafter that cannot be had costs speed, not text: the target carries on alone, and says so."""
        kind = find_method(name)
        load = partial(load_anyhow, kind) if anyhow else kind.load
        try:
            source = cast("Source", self._source(name, kind))
            return taught(load(source, self._target, self._tokenizer), self._target, how)
        except (InvalidRequest, VocabularyMismatch):
            raise  # asked for wrongly, which nobody wants to find out from a warning
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a drafter, the target can do without
            warnings.warn(f"no guesses will be made, the drafter could not be loaded: {error}", stacklevel=4)
            return find_method(PLAIN).load(None, self._target, self._tokenizer)

    def _source(self, name: str, kind: type[Drafter] | Recipe) -> Sources:
        """What a method drafts with. Raises InvalidRequest where it needs a source and none was given for it."""
        found = source_of(self._sources, name, kind)
        if name != self._method and not isinstance(self._sources, Mapping):
            both = kind.takes == MODEL == find_method(self._method).takes
            found = self._sources if both else None
        if found is None and self.bundled:
            found = shipped(kind, name)
        if found is None and kind.needs:
            raise InvalidRequest(
                f"the method {name} needs {kind.takes}: give draft='folder or hub id', or draft={{{name!r}: …}} where "
                "requests may choose among methods"
            )
        return found


def source_of(sources: Sources, name: str, kind: type[Drafter] | Recipe) -> Sources:
    """The source of one method, of one for all or of one each by name; of a joined method, the sources of its parts."""
    if not isinstance(sources, Mapping):
        return sources
    if isinstance(kind, Recipe):
        names = [part for part, _ in kind.parts]
        return {part: source for part, source in sources.items() if part in names} or None
    return sources.get(name)
