"""The speculators of one engine, cached; drafters are loaded when first named."""

import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from foreword import bundled
from foreword.budget import DraftBudget, FixedBudget, policy
from foreword.draft import MethodSpec, check_seq2seq, resolved, spelled
from foreword.draft import method as find_method
from foreword.draft.base import Drafter
from foreword.draft.ensemble.recipe import (
    Loader,
    Sources,
    labelled,
    quantized,
    shipped,
    taker,
)
from foreword.draft.tree.drafter import ModelDrafter
from foreword.engine import Engine
from foreword.engine.speculator import Speculator
from foreword.errors import (
    ForewordError,
    InvalidRequest,
    ModelError,
    VocabularyMismatch,
    words,
)
from foreword.model import Mode, Model, Tokenizer, measure
from foreword.options import DraftingOptions
from foreword.registry import AUTO, HEAD, MODEL, PLAIN
from foreword.shared import Shared
from foreword.types import SamplingParams
from foreword.verify import Rule
from foreword.verify import rule as find_rule

UNUSED = 16
"""Speculators kept in memory without a request, with their drafters."""


class SpeculatorCache:
    """Cache of speculators: the method, rule and budget policy that requests name."""

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer | None,
        sources: Sources,
        defaults: DraftingOptions,
        *,
        bundled: bool,
    ) -> None:
        """`sources`: the source of the default method, or a mapping from method name to
        source. `defaults` of requests name a method and a rule. `bundled`: the target
        is the bundled one, so that bundled drafts apply.
        """
        self._target = target
        self._tokenizer = tokenizer
        self._sources = sources
        self._defaults = defaults
        self._method = str(defaults.method)
        self._bundled = bundled
        self._members: Shared[Drafter] = Shared()
        """By name and source, for ensembles and alone."""
        self._drafters: Shared[Drafter] = Shared()
        """By method; speculators hold them."""
        self._speculators: Shared[Speculator] = Shared(UNUSED)
        self._loading = ThreadPoolExecutor(1, "foreword-loading")
        """One thread, so that no drafter is loaded twice; rounds go on meanwhile."""

    def default(self, *, fallback: bool) -> tuple[Drafter, Rule, DraftBudget]:
        """Return the defaults of requests. `fallback`: no method was named."""
        drafter = self._drafters.get(
            self._method, partial(self._load, self._method, fallback=fallback)
        )
        return (
            drafter,
            self._rule_for(self._defaults),
            self._budget_for(self._defaults),
        )

    def for_request(self, engine: Engine, params: SamplingParams) -> Speculator:
        """Return the speculator a request names, or the engine's default.

        Raises UnknownMethod for an unknown name and InvalidRequest if the speculator
        cannot be created.
        """
        choice = params.drafting
        if choice in (DraftingOptions(), DraftingOptions(method=self._method)):
            # One budget for both, so that it learns from all of them.
            return engine.default

        def make() -> Speculator:
            drafter = self.load(params).result()
            chosen = self._chosen(choice)
            return engine.speculator(
                drafter, self._rule_for(chosen), self._budget_for(chosen)
            )

        return self._speculators.get(choice, make)

    def load(self, params: SamplingParams) -> Future[Drafter]:
        """Return the drafter of a request, loaded in another thread if it is not in
        memory. Thread-safe.

        Raises UnknownMethod for an unknown name and InvalidRequest if the drafter
        cannot be created.
        """
        chosen = self._chosen(params.drafting)
        method = str(chosen.method)
        drafter = self._drafters.find(method)
        if drafter is not None:
            loaded: Future[Drafter] = Future()
            loaded.set_result(drafter)
            return loaded
        # refuse wrong names before a model is loaded
        self._rule_for(chosen)
        make = partial(self._load, method, fallback=False)
        return self._loading.submit(self._drafters.get, method, make)

    def can_draft(self, name: str) -> bool:
        """Whether requests may name this method: it suits the target, has a source."""
        kind = find_method(name)
        if self._target.seq2seq is not None and not kind.about.seq2seq:
            return False
        try:
            self._source(name, kind)
        except InvalidRequest:
            return False
        return True

    def label(self, name: str) -> str:
        """Return a method with its source, as measured speeds are kept under.

        Raises InvalidRequest if it needs a source and has none.
        """
        source = self._source(name, find_method(name))
        return labelled(name, source)

    def fresh(self, params: SamplingParams) -> Drafter:
        """Return a drafter of such requests that remembers no text of others. Models
        and heads are shared: they keep nothing of a text.

        Raises as `load` does.
        """
        name = str(self._chosen(params.drafting).method)
        kind = find_method(name)
        if kind.about.takes.startswith((MODEL, HEAD)):
            drafter = self.load(params).result()
            return drafter.anew() if isinstance(drafter, ModelDrafter) else drafter
        source = self._source(name, kind)
        loader = Loader(name, kind, Shared())
        return loader.load(source, self._target, self._tokenizer)

    def _chosen(self, choice: DraftingOptions) -> DraftingOptions:
        """Return the options of a request, completed by the defaults."""
        has_own = (choice.budget, choice.nodes) != (None, None)
        budget = choice if has_own else self._defaults
        method = choice.method or self._method
        if method == AUTO:
            bundled_draft = self._bundled and self._sources is None
            source = bundled.draft() if bundled_draft else self._sources
            method = resolved(method, source, self._target)
        return DraftingOptions(
            method=method,
            rule=choice.rule or self._defaults.rule,
            budget=budget.budget,
            nodes=budget.nodes,
        )

    def _rule_for(self, chosen: DraftingOptions) -> Rule:
        return find_rule(
            str(chosen.rule),
            draws=find_method(str(chosen.method)).about.draws,
            trees=self._target.mode is Mode.TREE,
        )

    def _budget_for(self, chosen: DraftingOptions) -> DraftBudget:
        if chosen.method == PLAIN:
            return FixedBudget(0)
        make = policy(chosen.budget, chosen.nodes)
        return make(partial(measure, self._target))

    def _load(self, name: str, *, fallback: bool) -> Drafter:
        """Load a drafter. One that was not named may fail: then decoding is plain."""
        kind = find_method(name)
        if self._target.seq2seq is not None:
            check_seq2seq(name, self._target.name)
        ready = partial(quantized, target=self._target)
        loader = Loader(name, kind, self._members, ready, fallback=fallback)
        try:
            source = self._source(name, kind)
            return loader.load(source, self._target, self._tokenizer)
        except (InvalidRequest, VocabularyMismatch):
            raise  # a wrong request must fail, not only warn
        except Exception as error:
            if name == self._method and not (fallback and self._sources is None):
                if isinstance(error, ForewordError):
                    raise
                raise ModelError(
                    f"cannot load method {name!r}: {words(error)}. Name another, or "
                    "'none'"
                ) from error
            warnings.warn(
                f"cannot load the drafter, so decoding runs without drafting: {error}",
                stacklevel=4,
            )
            from foreword.draft.none import NoDrafter

            return NoDrafter(str(error))

    def _source(self, name: str, kind: type[Drafter] | MethodSpec) -> Sources:
        """Return the source of a method. Raises InvalidRequest if one is missing."""
        source = source_of(self._sources, name, kind)
        if name != self._method and not isinstance(self._sources, Mapping):
            default = find_method(self._method)
            fits = kind.about.takes == MODEL == default.about.takes
            fits |= taker(kind, name) == taker(default, self._method)
            source = self._sources if fits else None
        if source is None and self._bundled:
            source = shipped(kind, name)
        check_source(source, name, kind)
        return source


def source_of(sources: Sources, name: str, kind: type[Drafter] | MethodSpec) -> Sources:
    """Return the source of one method; for an ensemble, the sources of its members by
    name.

    Raises UnknownMethod for a source of no method.
    """
    if not isinstance(sources, Mapping):
        return sources
    for key in sources:
        find_method(key)
    sources = {spelled(key): source for key, source in sources.items()}
    if isinstance(kind, MethodSpec):
        names = {*kind.leaves, *(name for name, _ in kind.parts)}
        return {
            name: source for name, source in sources.items() if name in names
        } or None
    return sources.get(name)


def check_source(source: Sources, name: str, kind: type[Drafter] | MethodSpec) -> None:
    """Raise InvalidRequest where a method needs a source and there is none."""
    if kind.about.needs and source is None:
        raise InvalidRequest(
            f"cannot use method {name!r}: it needs {kind.about.takes}. Give "
            "draft='folder or hub id', or "
            f"draft={{{name!r}: …}} if requests choose among methods"
        )


def described(engine: Engine, method: str) -> str:
    """Return an LLM in one line: its target, its defaults, and how the target runs."""
    target = engine.target
    about = (
        f"method={method!r}, rule={engine.rule.name!r}, "
        f"budget={type(engine.budget).__name__}"
    )
    forms = "".join(f", {name}={form!r}" for name, form in target.forms.items())
    kind = f"dtype='{target.dtype}'".replace("torch.", "") + forms
    return (
        f"LLM({target.name!r}, {about}, {kind}, device='{target.device}', "
        f"backend={target.capability.backend!r})"
    )
