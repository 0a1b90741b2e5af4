"""The drafting methods to certify, loaded for one target."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from foreword import bundled as bundled_models
from foreword.api.llm import LLM
from foreword.budget import policy
from foreword.draft import (
    METHODS,
    Drafter,
    MethodSpec,
    default_method,
    resolved,
)
from foreword.draft import method as find_method
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.ensemble.recipe import (
    Loader,
    shipped,
)
from foreword.engine.speculator import Speculator
from foreword.errors import InvalidRequest
from foreword.model import measure
from foreword.registry import (
    AUTO,
    DEFAULT_METHOD,
    DEFAULT_WITH_DRAFT,
    PLAIN,
)
from foreword.shared import Shared
from foreword.verify import RULES


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter and the name it has in the report."""

    name: str
    drafter: Drafter

    def speculator(self, llm: LLM, rule: str, nodes: int | None) -> Speculator:
        """Return the speculator for a rule and a fixed number of draft tokens, or the
        default budget.
        """
        budget = policy(nodes=nodes)(partial(measure, llm.target))
        return llm.engine.speculator(self.drafter, RULES[rule], budget)


def load_all(
    llm: LLM,
    drafts: Sequence[str],
    methods: Sequence[str],
    *,
    bundled: bool,
) -> list[Drafting]:
    """Load the named methods; without names, the methods of the drafts, all that need
    nothing, and the default, which chooses among several.

    `bundled`: the target is the bundled one, so that bundled drafts apply. Raises what
    the methods' own `load` raises, and InvalidRequest for a method without its source.
    """
    named = partial(_named, llm, bundled=bundled)
    if methods:
        alone = {name: named(name, drafts) for name in methods if name != AUTO}
        chosen = partial(_auto, llm, [*alone.values()], drafts, bundled=bundled)
        return [alone[name] if name in alone else chosen() for name in methods]
    several = len(drafts) > 1
    draftings = [_of_draft(llm, draft, several=several) for draft in drafts]
    if bundled and not drafts:
        draftings.append(named(DEFAULT_WITH_DRAFT, ()))
    draftings += [named(name, ()) for name in _free()]
    return [*draftings, _auto(llm, draftings, drafts, bundled=bundled)]


def _auto(
    llm: LLM,
    loaded: Sequence[Drafting],
    drafts: Sequence[str],
    *,
    bundled: bool,
) -> Drafting:
    """Return the default method, with members that are loaded already if they are."""
    source = drafts[0] if drafts else bundled_models.draft() if bundled else None
    kind = find_method(resolved(AUTO, source, llm.target))
    assert isinstance(kind, MethodSpec)
    members = {one.name: one.drafter for one in loaded}
    if drafts and loaded:
        members.setdefault(default_method(drafts[0]), loaded[0].drafter)
    for name, _ in kind.parts:
        if name not in members:
            members[name] = _named(llm, name, (), bundled=bundled).drafter
    joint = AutoDrafter([members[name] for name, _ in kind.parts])
    joint.names = tuple(name for name, _ in kind.parts)
    return Drafting(AUTO, joint)


def _of_draft(
    llm: LLM,
    draft: str,
    *,
    several: bool,
) -> Drafting:
    """Load a draft with its own method, or one that maps its tokens."""
    name = default_method(draft)
    loader = Loader(name, find_method(name), Shared(), fallback=True)
    loaded = loader.load(draft, llm.target, llm.session.tokenizer)
    return Drafting(f"{name} ({draft})" if several else name, loaded)


def _named(
    llm: LLM,
    name: str,
    drafts: Sequence[str],
    *,
    bundled: bool,
) -> Drafting:
    kind = find_method(name)
    source = _source(kind, name, drafts)
    if source is None and bundled:
        source = shipped(kind, name)
    if source is None and kind.about.needs:
        raise InvalidRequest(
            f"cannot certify method {name!r}: it needs {kind.about.takes}. Give "
            "'--draft'"
        )
    tokenizer = llm.session.tokenizer
    return Drafting(name, kind.load(source, llm.target, tokenizer))


def _source(
    kind: type[Drafter] | MethodSpec,
    name: str,
    drafts: Sequence[str],
) -> str | Path | None:
    """Return the draft of this very method, else the first one if it takes any."""
    for draft in drafts:
        if default_method(draft) == name:
            return draft
    takes = bool(drafts and kind.about.takes)
    return drafts[0] if takes else None


def _free() -> list[str]:
    """Return the methods that need nothing, the default one first."""
    return sorted(
        filter(_needs_nothing, METHODS.own), key=lambda name: name != DEFAULT_METHOD
    )


def _needs_nothing(name: str) -> bool:
    kind = find_method(name)
    if name == PLAIN or isinstance(kind, MethodSpec):
        return False
    return not kind.about.takes
