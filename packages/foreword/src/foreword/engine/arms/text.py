"""What a choice among several arms knows of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.budget.choice import Choice, OnText
from foreword.types import DraftTree

Kind = tuple[tuple[bool, bool], int]
"""((greedy, plain), bits of the number of requests)."""


@dataclass(slots=True)
class ShadowDraft:
    """A draft that was not verified, and how far the text has followed it."""

    tree: DraftTree
    read: int
    """Tokens of the text that were compared, or were there before."""
    seconds: float
    """Time of drafting it."""
    node: int = -1
    accepted: int = 0

    def follow(self, tokens: Sequence[int]) -> bool:
        """Follow the text, and return whether it has left the draft."""
        children_by_token = self.tree.children_by_token()
        for token in tokens[self.read :]:
            child = children_by_token.get(self.node, {}).get(token)
            if child is None:
                return True
            self.node = child
            self.accepted += 1
        self.read = len(tokens)
        return not children_by_token.get(self.node)


@dataclass(slots=True)
class ArmsText:
    """What is known of one request."""

    sort: tuple[bool, bool]
    """(greedy, plain)."""
    by_arm: list[OnText]
    arm: int = -1
    """The arm in use."""
    since: int = 0
    """Tokens of the text when it came into use."""
    switched: bool = False
    """Whether another arm was used in the round before."""
    choice: Choice | None = None
    """The choice of its last round."""
    bits: int = 0
    """Bits of the number of requests in that round."""
    drafts: dict[int, ShadowDraft] = field(default_factory=dict)
    """By arm: the draft being scored."""
    reread: dict[int, int] = field(default_factory=dict)
    """By arm: tokens of the text when its draft model last read it to be scored."""
    turn: int = 0
    """Arms draft in turn, one a round."""
