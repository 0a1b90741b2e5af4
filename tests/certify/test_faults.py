"""Faults planted in rules, draws, caches and kernels of a pair are found."""

from collections.abc import Mapping

import pytest

from faults.fault import Fault, search
from faults.rules import LOSSY, SAMPLED
from faults.table import FAULTS
from foreword import LLM
from foreword_lab.certify import run
from foreword_lab.certify.drafting import load_all
from foreword_lab.certify.run import CertifyOptions
from foreword_lab.certify.sampling import Sampling
from foreword_lab.certify.setups import SETUPS

BATCHES = 24
COMPARED = {name: FAULTS[name] for name in FAULTS.keys() - SAMPLED.keys()}


def marked(faults: Mapping[str, Fault]) -> list:
    """Names of faults; faults that take long to find are slow tests."""
    return [
        name if faults[name].quick else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(faults)
    ]


def first_difference(llm: LLM, patch: pytest.MonkeyPatch, fault: Fault) -> str:
    """Plant a fault; return the check of bits or texts that differs, if one does."""
    draftings = load_all(llm, (), fault.methods, bundled=True)
    fault.plant(patch, llm)
    patch.setattr(run, "QUICK_TURNS", len(SETUPS))
    patch.setattr(run, "_rules", lambda *_: [])
    patch.setattr(run, "_samples", lambda *_: [])
    return search(llm, draftings, CertifyOptions(quick=True)).check


@pytest.mark.parametrize("name", marked(SAMPLED))
def test_fault_of_a_rule_is_found_by_its_samples(
    plain: LLM, monkeypatch, name: str
) -> None:
    (lm,) = load_all(plain, (), ("lm",), bundled=True)
    SAMPLED[name].plant(monkeypatch, plain)
    sampling = Sampling(plain, [(lm, LOSSY)], 0)
    for _ in range(BATCHES):
        sampling.sample(0)
        if sampling.ledger.differs:
            break
    assert sampling.accepted[0] > 0
    assert sampling.check().status == "differs", sampling.check().what


@pytest.mark.parametrize("name", marked(COMPARED))
def test_fault_is_found_by_bits_or_texts(plain: LLM, monkeypatch, name: str) -> None:
    found = first_difference(plain, monkeypatch, COMPARED[name])
    assert found.startswith("same "), found


@pytest.mark.slow
def test_exact_rule_is_consistent_in_as_many_samples(plain: LLM) -> None:
    (lm,) = load_all(plain, (), ("lm",), bundled=True)
    sampling = Sampling(plain, [(lm, LOSSY)], 0)
    for _ in range(BATCHES):
        sampling.sample(0)
    check = sampling.check()
    assert check.status == "consistent", check.what
    assert check.bound < 0.06
