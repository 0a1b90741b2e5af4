"""A method made of methods: its name is written like a call, and its parts are loaded one by one.

Knows classes and what they take; knows no method by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from foreword import family
from foreword.draft.base import MODEL, Drafter, Source
from foreword.draft.parts import Parts
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer

Sources = Source | Mapping[str, Source]
"""One source, or one for each part by its name."""


def shipped(kind: type[Drafter] | Recipe, name: str) -> Path | None:
    """What the family that ships has for a method of this name; None where it needs nothing, or there is none."""
    if not kind.needs:
        return None
    taker = kind.taker if isinstance(kind, Recipe) else name
    return family.draft() if kind.takes == MODEL else family.head(taker)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to join, and how. Loads like the class of a drafter."""

    kind: type[Parts]
    parts: tuple[tuple[str, type[Drafter] | Recipe], ...]
    """(name, class or recipe)."""

    @property
    def summary(self) -> str:
        return f"{self.kind.summary}: {', '.join(name for name, _ in self.parts)}"

    @property
    def takes(self) -> str:
        """What the parts that cannot do without a source take; else what the others may."""
        return next((part.takes for _, part in self._by_need if part.takes), "")

    @property
    def taker(self) -> str:
        """The part that takes the source, by its name; of one that joins others, their part."""
        name, part = next(((name, part) for name, part in self._by_need if part.takes), ("", None))
        return part.taker if isinstance(part, Recipe) else name

    @property
    def needs(self) -> bool:
        return any(part.needs for _, part in self.parts)

    @property
    def draws(self) -> bool:
        return any(part.draws for _, part in self.parts)

    @property
    def learns(self) -> bool:
        return any(part.learns for _, part in self.parts)

    def load(self, source: Sources, target: Model, tokenizer: Tokenizer | None) -> Drafter:
        """Make every part. One source goes to the part that needs it; several are given by name.

        Raises InvalidRequest where a name is no part's, or nobody takes the source; and what the parts raise.
        """
        sources = self._shared(source)
        made = [part.load(cast("Source", sources.get(name)), target, tokenizer) for name, part in self.parts]
        return self.kind(made)

    @property
    def _by_need(self) -> list[tuple[str, type[Drafter] | Recipe]]:
        return sorted(self.parts, key=lambda part: not part[1].needs)

    def _shared(self, source: Sources) -> Mapping[str, Sources]:
        names = [name for name, _ in self.parts]
        if isinstance(source, Mapping):
            strangers = sorted(set(source) - set(names))
            if strangers:
                raise InvalidRequest(f"draft names {strangers[0]!r}, which is none of the parts: {', '.join(names)}")
            return source
        if source is None:
            return {}
        takers = [name for name, part in self._by_need if part.takes]
        if not takers:
            raise InvalidRequest(f"none of {', '.join(names)} takes anything to draft with; leave draft=None")
        return {takers[0]: source}
