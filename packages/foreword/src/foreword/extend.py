"""What a method, a rule or a budget of your own is made of (docs/add-a-method.md).

from foreword.extend import METHODS, Drafter, Method, chosen
"""

from foreword.budget.base import DraftBudget, Measure, RoundResult, StoppingBudget
from foreword.draft.base import Drafter, Source, chosen
from foreword.draft.tree.drafter import ModelDrafter
from foreword.draft.tree.sampled import SampledTree
from foreword.registry import BUDGETS, METHODS, RULES, WEIGHT_FORMATS, Method
from foreword.types import Batch, Draft, DraftTree, Noise, Scores, Verdict
from foreword.verify.base import Rule

__all__ = [
    "BUDGETS",
    "METHODS",
    "RULES",
    "WEIGHT_FORMATS",
    "Batch",
    "Draft",
    "DraftBudget",
    "DraftTree",
    "Drafter",
    "Measure",
    "Method",
    "ModelDrafter",
    "Noise",
    "RoundResult",
    "Rule",
    "SampledTree",
    "Scores",
    "Source",
    "StoppingBudget",
    "Verdict",
    "chosen",
]
