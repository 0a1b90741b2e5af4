"""Budget policies, which set the number of draft tokens. Under `match` none of them
changes the text.

Inputs are costs, distributions and outcomes; models and draft methods are out of scope.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from foreword.budget.adaptive import AdaptiveBudget
from foreword.budget.base import DraftBudget, FixedBudget, Measure, RoundResult
from foreword.budget.costs import Costs
from foreword.budget.learned import AcceptanceBudget
from foreword.budget.stopping import (
    AdaEdlBudget,
    ConfidenceBudget,
    HeuristicBudget,
    SvipBudget,
)
from foreword.errors import InvalidRequest, UnknownMethod

__all__ = [
    "BUDGETS",
    "USUAL",
    "AcceptanceBudget",
    "AdaEdlBudget",
    "AdaptiveBudget",
    "ConfidenceBudget",
    "Costs",
    "DraftBudget",
    "FixedBudget",
    "HeuristicBudget",
    "Measure",
    "RoundResult",
    "SvipBudget",
    "policy",
]

BUDGETS: dict[str, type[DraftBudget]] = {
    "adaptive": AdaptiveBudget,
    "heuristic": HeuristicBudget,
    "confidence": ConfidenceBudget,
    "svip": SvipBudget,
    "adaedl": AdaEdlBudget,
    "acceptance": AcceptanceBudget,
}
USUAL = "adaptive"
"""Default budget policy."""


def policy(
    budget: str | DraftBudget | None = None, nodes: int | None = None
) -> Callable[[Measure], DraftBudget]:
    """Return a factory of the named policy, or of a constant budget of `nodes`; an
    instance is returned as it is.

    Raises UnknownMethod, with the valid names, for other names, and InvalidRequest if
    both are given.
    """
    if budget is not None and nodes is not None:
        raise InvalidRequest(
            f"cannot use both nodes={nodes} and budget={budget!r}: each sets the "
            "number of draft tokens. Give one"
        )
    if nodes is not None:
        return lambda _: FixedBudget(nodes)
    if isinstance(budget, DraftBudget):
        return lambda _: budget
    budget = USUAL if budget is None else budget
    if not isinstance(budget, str):
        raise InvalidRequest(
            f"cannot use budget={budget!r}: it is no name. Choose one of "
            f"{', '.join(BUDGETS)}"
        )
    name, _, source = budget.partition(":")
    if name not in BUDGETS:
        close = get_close_matches(name, BUDGETS, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise UnknownMethod(
            f"cannot use budget={name!r}: no policy has that name. {hint}Choose one of "
            f"{', '.join(BUDGETS)}"
        )
    return BUDGETS[name].told(source)
