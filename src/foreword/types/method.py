"""Names of drafting methods, written like calls: their one spelling, and the bounds of
what a client may name.
"""

from __future__ import annotations

import re

from foreword.errors import InvalidRequest

LONGEST = 256
"""Characters. All methods of this package in one ensemble have some 130."""
DEEPEST = 4
"""Levels of ensembles in ensembles; more are parsed and loaded one in another."""
WIDEST = 16
"""Methods in one name. Each may hold a model, and drafts in every round."""
_MARK = re.compile(r"\s*([(),])\s*")


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
