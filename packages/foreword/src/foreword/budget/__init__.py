"""Budget policies, which set the number of draft tokens. Under `match` none of them
changes the text.

Inputs are costs, distributions and outcomes; models and draft methods are out of scope.
"""

from collections.abc import Callable

from foreword.budget.adaptive import AdaptiveBudget
from foreword.budget.base import (
    DraftBudget,
    FixedBudget,
    Measure,
    RoundResult,
    StoppingBudget,
)
from foreword.budget.costs import Costs
from foreword.errors import InvalidRequest
from foreword.registry import BUDGETS, DEFAULT_BUDGET

__all__ = [
    "BUDGETS",
    "AdaptiveBudget",
    "Costs",
    "DraftBudget",
    "FixedBudget",
    "Measure",
    "RoundResult",
    "StoppingBudget",
    "policy",
]


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
