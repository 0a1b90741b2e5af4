"""How much to guess: one file per policy. Under `match` no choice made here changes the text.

Knows costs, laws and what became of guesses; knows nothing about models or how guesses are made.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from foreword.errors import InvalidRequest, UnknownMethod
from foreword.width.acceptance import Acceptance
from foreword.width.adaedl import AdaEdl
from foreword.width.base import Fixed, Measure, Outcome, Width
from foreword.width.confidence import Confidence
from foreword.width.costs import Costs
from foreword.width.heuristic import Heuristic
from foreword.width.measured import Measured
from foreword.width.svip import Svip

__all__ = [
    "USUAL",
    "WIDTHS",
    "Acceptance",
    "AdaEdl",
    "Confidence",
    "Costs",
    "Fixed",
    "Heuristic",
    "Measure",
    "Measured",
    "Outcome",
    "Svip",
    "Width",
    "policy",
]

WIDTHS: dict[str, type[Width]] = {
    "measured": Measured,
    "heuristic": Heuristic,
    "confidence": Confidence,
    "svip": Svip,
    "adaedl": AdaEdl,
    "acceptance": Acceptance,
}
USUAL = "measured"
"""What decides when nobody says who."""


def policy(asked: str | Width | None = None, nodes: int | None = None) -> Callable[[Measure], Width]:
    """What makes the policy of that name, or one of always `nodes` guesses; one that is made already stays as it is.

    Raises UnknownMethod, with the names there are, for other names, and InvalidRequest where both are given.
    """
    if asked is not None and nodes is not None:
        raise InvalidRequest(f"nodes={nodes} fixes how much is guessed, and width={asked!r} decides it; give one")
    if nodes is not None:
        return lambda _: Fixed(nodes)
    if isinstance(asked, Width):
        return lambda _: asked
    asked = USUAL if asked is None else asked
    if not isinstance(asked, str):
        raise InvalidRequest(f"cannot use width={asked!r}: it is no name. Choose one of {', '.join(WIDTHS)}")
    name, _, source = asked.partition(":")
    if name not in WIDTHS:
        close = get_close_matches(name, WIDTHS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UnknownMethod(f"there is no width {name!r}; {hint}choose one of {', '.join(WIDTHS)}")
    return WIDTHS[name].told(source)
