"""GUESS: one file per method. This registry is the only place outside a method's own file that names it."""

from __future__ import annotations

import difflib
from importlib import import_module

from foreword.draft.base import Drafter
from foreword.errors import UnknownMethod

METHODS: dict[str, str] = {
    "none": "foreword.draft.none:NoDrafter",
    "ngram": "foreword.draft.ngram:NgramDrafter",
    "lm": "foreword.draft.lm:LanguageModelDrafter",
}
"""Name of a method -> where its class is; imported when asked for."""

WITHOUT_DRAFT, WITH_DRAFT, PLAIN = "ngram", "lm", "none"
"""What runs when a request names no method: without a draft model, with one; and what guesses nothing."""


def method(name: str) -> type[Drafter]:
    """The class of a method. Raises UnknownMethod with the nearest names."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownMethod(f"there is no method {name!r}.{hint} Methods: {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    return getattr(import_module(module), attribute)


__all__ = ["METHODS", "Drafter", "method"]
