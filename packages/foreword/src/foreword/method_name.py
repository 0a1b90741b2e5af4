"""Names of drafting methods, written like calls: their parts, their one spelling, and
the bounds of what a client may name.
"""

import re
from dataclasses import dataclass

from foreword.errors import InvalidRequest
from foreword.registry import METHODS

LONGEST = 256
"""Characters. All methods of this package in one ensemble have some 130."""
DEEPEST = 4
"""Levels of ensembles in ensembles; more are parsed and loaded one in another."""
WIDEST = 16
"""Methods in one name. Each may hold a model, and drafts in every round."""
_MARK = re.compile(r"\s*([(),])\s*")
_CALL = re.compile(r"([\w-]+)(?:\((.*)\))?")


@dataclass(frozen=True, slots=True)
class MethodName:
    """A method, and the methods that it joins."""

    head: str
    members: "tuple[MethodName, ...] | None" = None
    """None if no members are named, which leaves them to the ensemble."""

    def __str__(self) -> str:
        if self.members is None:
            return self.head
        return f"{self.head}({', '.join(map(str, self.members))})"


def spelled(name: str) -> str:
    """Return the one spelling of a method's name, `join(one, two)`: caches and
    statistics use it as their key.

    Raises InvalidRequest for a name that is too long, too deep or too wide. Which
    methods there are is not read.
    """
    if len(name) > LONGEST:
        raise InvalidRequest(
            f"cannot use this method: its name has {len(name)} characters, the limit "
            f"is {LONGEST}. Name fewer members"
        )
    depth = deepest = 0
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise InvalidRequest(
            f"cannot use this method: its ensembles are nested {deepest} deep, the "
            f"limit is {DEEPEST}. Flatten them"
        )
    if name.count(",") >= WIDEST:
        raise InvalidRequest(
            f"cannot use this method: it has {name.count(',') + 1} members, the limit "
            f"is {WIDEST}. Name fewer"
        )
    return _MARK.sub(r"\1", name.strip()).replace(",", ", ")


def parsed(name: str) -> MethodName:
    """Return the parts of a name.

    Raises InvalidRequest for a name that cannot be read, UnknownMethod if a part is
    not a method.
    """
    if not isinstance(name, str) or not name.strip():
        METHODS.check(name)
    name = spelled(name)
    match = _CALL.fullmatch(name)
    if match is None or name.count("(") != name.count(")"):
        raise InvalidRequest(
            f"cannot read the method {name!r}: it is not a name or call. Give a name, "
            "or a combination: name(one, two)"
        )
    head, inside = match[1], match[2]
    METHODS.check(head)
    if inside is None:
        return MethodName(head)
    if not inside:
        return MethodName(head, ())
    members = tuple(parsed(member) for member in _arguments(inside))
    return MethodName(head, members)


def _arguments(inside: str) -> list[str]:
    """Split the arguments of a call at its top-level commas."""
    arguments = [""]
    depth = 0
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += letter
    return [argument.strip() for argument in arguments]
