"""Faults of rules: they verify other scores, or by other noise."""

from collections.abc import Callable
from dataclasses import replace

import torch

from faults.fault import Fault, Plant
from foreword.types import Verdict
from foreword.verify import RULES, Rule

LOSSY = "rejection"


def reading(change: Callable) -> Plant:
    """Plant a rule that reads what `change` makes of scores and noise."""

    def verifying(rule: Rule) -> Callable:
        return lambda weights, draft, noise: rule.verify(
            *verified(*change(weights, noise), draft)
        )

    def verified(weights, noise, draft):
        return weights, draft, noise

    return planting(verifying)


def planting(verifying: Callable[[Rule], Callable]) -> Plant:
    def plant(patch, _llm):
        rule = RULES[LOSSY]
        patch.setitem(RULES, LOSSY, replace(rule, verify=verifying(rule)))

    return plant


def softer(factor: float) -> Plant:
    return reading(lambda scores, n: (scores, replace(n, accept=n.accept * factor)))


def cooler(factor: float) -> Plant:
    return reading(lambda scores, noise: (scores * factor, noise))


def likeliest(scores, noise):
    least = scores.topk(min(20, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf), noise


def one_row_late(scores, noise):
    return torch.cat([scores[:, :1], scores[:, :-1]], 1), noise


def greedy_bonus(rule: Rule) -> Callable:
    """Add the likeliest token after the accepted ones."""

    def verify(weights, draft, noise):
        verdict = rule.verify(weights, draft, noise)
        ends = [kept[-1] + 1 if kept else 0 for kept in verdict.kept]
        added = weights.argmax(-1)[range(len(ends)), ends].tolist()
        return Verdict(verdict.kept, added, draft.nodes)

    return verify


def near_ties(patch, _llm):
    """Accept a draft token within a tenth of a nat of the drawn one."""
    exact = RULES["match"]

    def verify(weights, draft, noise):
        scores = weights if noise.gumbel is None else weights + noise.gumbel
        near = scores.clone()
        for row, tree in enumerate(draft.trees):
            for node, token in enumerate(tree.tokens):
                parent = tree.parents[node] + 1
                best = scores[row, parent].max()
                if scores[row, parent, token] > best - 0.1:
                    near[row, parent, token] = best + 1
        return exact.verify(near, draft, replace(noise, gumbel=None))

    patch.setitem(RULES, "match", replace(exact, follow=None, verify=verify))


SAMPLED: dict[str, Fault] = {
    "acceptance uniforms halved": Fault(softer(0.5), quick=True),
    "greedy bonus": Fault(planting(greedy_bonus), quick=True),
    "acceptance uniforms a fifth smaller": Fault(softer(0.8)),
    "acceptance uniforms doubled": Fault(softer(2.0)),
    "temperature a tenth low": Fault(cooler(1.1)),
    "temperature a tenth high": Fault(cooler(0.9)),
    "the likeliest 20 tokens alone": Fault(reading(likeliest)),
    "scores of the token before": Fault(reading(one_row_late)),
}
"""Faults that samples of the rule find."""
RULE_FAULTS = SAMPLED | {"near ties that match accepts": Fault(near_ties)}
