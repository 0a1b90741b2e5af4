"""PROPOSE: one file per method, and one entry of foreword.registry."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from foreword.draft.base import Drafter
from foreword.draft.ensemble.recipe import MethodSpec
from foreword.errors import InvalidRequest, ModelError
from foreword.method_name import MethodName, parsed, spelled
from foreword.model.loading.hub import kinds
from foreword.options import DraftingOptions
from foreword.registry import (
    AUTO,
    DEFAULT_BUDGET,
    DEFAULT_MEMBERS,
    DEFAULT_METHOD,
    DEFAULT_RULE,
    DEFAULT_WITH_DRAFT,
    GUARANTEES,
    HEAD_KEYS,
    HEAD_METHODS,
    LOOKUPS,
    METHODS,
    OTHER_HEADS,
    OWN_METHODS,
)

if TYPE_CHECKING:
    from foreword.draft.ensemble.joint import JointDrafter

__all__ = [
    "METHODS",
    "Drafter",
    "MethodSpec",
    "default_method",
    "method",
    "method_of",
    "resolved",
    "spelled",
]


def method(name: str) -> type[Drafter] | MethodSpec:
    """Return the class of a method, or the spec of an ensemble, written like a call:
    `name(one, two)`.

    Raises UnknownMethod with the nearest names, or InvalidRequest for a name that
    cannot be read.
    """
    return _found(parsed(name))


def _found(name: MethodName) -> type[Drafter] | MethodSpec:
    kind = METHODS[name.head]
    if kind.about.joins:
        members = name.members
        if members is None and name.head == AUTO:
            members = parsed(resolved(AUTO, {DEFAULT_WITH_DRAFT: None})).members
        elif members is None:
            members = tuple(MethodName(member) for member in DEFAULT_MEMBERS)
        parts = tuple((str(one), _found(one)) for one in _once(members or ()))
        return MethodSpec(cast("type[JointDrafter]", kind), parts)
    if name.members is not None:
        raise InvalidRequest(
            f"cannot use the method {str(name)!r}: {name.head} joins no other methods. "
            "Leave out the brackets"
        )
    return kind


def _once(members: tuple[MethodName, ...]) -> tuple[MethodName, ...]:
    """Return the members. Raises InvalidRequest for none, or one named twice."""
    if not members:
        raise InvalidRequest("cannot join no methods: name the members in the brackets")
    twice = [one for at, one in enumerate(members) if one in members[:at]]
    if twice:
        raise InvalidRequest(
            f"cannot join {twice[0]} twice: both would draft the same tokens. Name it "
            "once"
        )
    return members


def check_seq2seq(name: str, target: str) -> None:
    """Raise InvalidRequest for a method that cannot draft for `target`."""
    if method(name).about.seq2seq:
        return
    usable = [one for one in METHODS.own if method(one).about.seq2seq]
    raise InvalidRequest(
        f"cannot use method {name!r}: {target} is an encoder-decoder. Use one of "
        f"{', '.join(usable)}"
    )


def method_of(drafting: DraftingOptions, source: object, target: object = None) -> str:
    """Return the method of these options with its members. The default is AUTO, or the
    own method of the source where a rule, a budget or several sources are named.
    """
    if drafting.method is not None:
        return resolved(drafting.method, source, target)
    usual = drafting.rule in (None, DEFAULT_RULE, GUARANTEES[0])
    usual &= drafting.budget in (None, DEFAULT_BUDGET) and drafting.nodes is None
    if isinstance(source, Mapping) or not usual:
        return default_method(source, target)
    return resolved(AUTO, source, target)


def resolved(name: str, source: object, target: object = None) -> str:
    """Return the name of a method with its members: "auto" chooses among the methods
    that suit the source and the target.
    """
    if name != AUTO:
        return name
    sources = [default_method(source, target)]
    if isinstance(source, Mapping):
        sources = list(source)
    members = dict.fromkeys((*sources, *_brought_by(target), *LOOKUPS))
    return f"{AUTO}({', '.join(members)})"


def default_method(source: object, target: object = None) -> str:
    """Return the own method of a source: the config of a trained head names it; without
    a source, that of the target's checkpoint; of a mapping from methods, the first.
    """
    if source is None:
        return next(iter(_brought_by(target)), DEFAULT_METHOD)
    if isinstance(source, Mapping):
        return next(iter(source), DEFAULT_WITH_DRAFT)
    declared = kinds(source) if isinstance(source, str | Path) else ()
    if other := [kind for kind in declared if kind in OTHER_HEADS]:
        raise ModelError(
            f"cannot draft with {source}: its config names a head of the kind "
            f"{other[0]!r}, which no method runs. Choose a head of one of these "
            f"kinds: {', '.join(one for one in HEAD_METHODS if one not in HEAD_KEYS)}"
        )
    return head_method(declared) or DEFAULT_WITH_DRAFT


def head_method(declared: Sequence[str]) -> str | None:
    """Return the method of the head that is one of these kinds; None for no head."""
    return next((HEAD_METHODS[one] for one in declared if one in HEAD_METHODS), None)


def _brought_by(target: object) -> list[str]:
    """Return the methods that a target's own checkpoint serves."""
    return [name for name, one in OWN_METHODS.items() if one.brought_by(target)]
