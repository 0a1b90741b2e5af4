"""Faults planted in the rules, the draws and the forwards of a pair are found."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from foreword import LLM
from foreword.types import Verdict
from foreword.verify import RULES, Rule
from foreword_lab.certify.drafting import load_all
from foreword_lab.certify.run import CertifyOptions, examine
from foreword_lab.certify.sampling import Sampling

LOSSY = "rejection"
BATCHES = 24


def reading(change: Callable) -> Callable[[Rule], Rule]:
    """Verify other scores, or by other noise."""

    def planted(rule: Rule) -> Rule:
        def verify(weights, draft, noise):
            weights, noise = change(weights, noise)
            return rule.verify(weights, draft, noise)

        return replace(rule, verify=verify)

    return planted


def softer(factor: float) -> Callable[[Rule], Rule]:
    return reading(lambda scores, n: (scores, replace(n, accept=n.accept * factor)))


def cooler(factor: float) -> Callable[[Rule], Rule]:
    return reading(lambda scores, noise: (scores * factor, noise))


def likeliest(scores, noise):
    least = scores.topk(20).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf), noise


def one_row_late(scores, noise):
    return torch.cat([scores[:, :1], scores[:, :-1]], 1), noise


def greedy_bonus(rule: Rule) -> Rule:
    """Add the likeliest token after the accepted ones."""

    def verify(weights, draft, noise):
        verdict = rule.verify(weights, draft, noise)
        ends = [kept[-1] + 1 if kept else 0 for kept in verdict.kept]
        added = weights.argmax(-1)[range(len(ends)), ends].tolist()
        return Verdict(verdict.kept, added, draft.nodes)

    return replace(rule, verify=verify)


PLANTED = {
    "acceptance uniforms a fifth smaller": softer(0.8),
    "acceptance uniforms doubled": softer(2.0),
    "temperature a tenth low": cooler(1.1),
    "temperature a tenth high": cooler(0.9),
    "the likeliest 20 tokens alone": reading(likeliest),
    "scores of the token before": reading(one_row_late),
}


OFTEN = {"acceptance uniforms halved": softer(0.5), "greedy bonus": greedy_bonus}
EVERY = [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in PLANTED)]


@pytest.mark.parametrize("fault", EVERY)
def test_fault_of_a_rule_is_found_by_its_samples(
    plain: LLM, monkeypatch, fault: str
) -> None:
    (lm,) = load_all(plain, (), ("lm",), bundled=True)
    monkeypatch.setitem(RULES, LOSSY, {**OFTEN, **PLANTED}[fault](RULES[LOSSY]))
    sampling = Sampling(plain, [(lm, LOSSY)], 0)
    for _ in range(BATCHES):
        sampling.sample(0)
        if sampling.ledger.differs:
            break
    assert sampling.accepted[0] > 0
    assert sampling.check().status == "differs", sampling.check().what


@pytest.mark.slow
def test_exact_rule_is_consistent_in_as_many_samples(plain: LLM) -> None:
    (lm,) = load_all(plain, (), ("lm",), bundled=True)
    sampling = Sampling(plain, [(lm, LOSSY)], 0)
    for _ in range(BATCHES):
        sampling.sample(0)
    check = sampling.check()
    assert check.status == "consistent", check.what
    assert check.bound < 0.06


@pytest.mark.slow
def test_near_ties_that_match_accepts_are_faults_on_native(
    plain: LLM, monkeypatch
) -> None:
    """A draft token within a tenth of a nat of the drawn one: no rounding here."""
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

    eager = replace(exact, follow=None, verify=verify)
    monkeypatch.setitem(RULES, "match", eager)
    draftings = load_all(plain, (), ("lm",), bundled=True)
    found = examine(plain, draftings, CertifyOptions(minutes=0.5))
    assert plain.target.capability.backend.startswith("native")
    same = next(one for one in found.checks if one.name == "same text: lm")
    assert same.status == "differs", same.what
