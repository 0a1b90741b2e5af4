"""Budget policies, which set the number of draft tokens. Under `match` none of them
changes the text.

Inputs are costs, distributions and outcomes; models and draft methods are out of scope.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from foreword.budget.adaptive import AdaptiveBudget
from foreword.budget.base import DraftBudget, FixedBudget, Measure, RoundResult
from foreword.budget.costs import Costs
from foreword.errors import InvalidRequest
from foreword.registry import BUDGETS, DEFAULT_BUDGET

if TYPE_CHECKING:
    from foreword.budget.heuristic import HeuristicBudget
    from foreword.budget.stopping import AdaEdlBudget, ConfidenceBudget, SvipBudget

_HOME = {
    "HeuristicBudget": "heuristic",
    **dict.fromkeys(("AdaEdlBudget", "ConfidenceBudget", "SvipBudget"), "stopping"),
}
"""Names that are imported on first use, by their modules."""

__all__ = [
    "BUDGETS",
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


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'foreword.budget' has no attribute {name!r}")
    return getattr(import_module(f"foreword.budget.{_HOME[name]}"), name)


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
    if budget is None:
        budget = DEFAULT_BUDGET
    name, _, source = str(budget).partition(":")
    return BUDGETS.find(name).from_text(source)
