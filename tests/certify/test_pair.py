"""A sound pair passes; a drafter or a rule that changes text is found."""

import json
from dataclasses import replace

import pytest

from drafters import Foresight
from foreword import LLM, bundled
from foreword.errors import InvalidRequest
from foreword.types import Verdict
from foreword.verify import RULES
from foreword_lab.certify import run
from foreword_lab.certify.drafting import Drafting, load_all
from foreword_lab.certify.report import Certificate, Check
from foreword_lab.certify.run import CertifyOptions, certify, check_rule, examine
from foreword_lab.certify.setups import SETUPS

QUICK = CertifyOptions(quick=True)


def checks(found: Certificate) -> dict[str, Check]:
    return {check.name: check for check in found.checks}


def one_unseen(drawn, tree):
    """Accepts one draft token that the target did not draw."""
    children = tree.children_by_token()
    here, path = -1, []
    while below := children.get(here):
        agreed = drawn[here + 1] in below
        here = below[drawn[here + 1]] if agreed else next(iter(below.values()))
        path.append(here)
        if not agreed:
            break
    return path, drawn[here + 1]


def too_eager(weights, draft, noise):
    scores = weights if noise.gumbel is None else weights + noise.gumbel
    drawn = scores.argmax(-1).tolist()
    rows = [one_unseen(*row) for row in zip(drawn, draft.trees, strict=True)]
    return Verdict([path for path, _ in rows], [end for _, end in rows], draft.nodes)


def test_sound_drafters_pass(plain: LLM) -> None:
    draftings = load_all(plain, (), ("lm", "predicted"), bundled=True)
    found = examine(plain, draftings, QUICK)
    assert found.status == "consistent"
    named = checks(found)
    for method in ("lm", "predicted"):
        same = named[f"same text: {method}"]
        assert same.status == "consistent"
        assert same.evidence["texts with accepted draft tokens"] > 6
        conditions = same.evidence["conditions"]
        wanted = {"alone", "beside others", "prompt in chunks", "temperature 0"}
        assert wanted <= conditions.keys()
        assert "JSON schema" in conditions
        assert {*same.evidence["left out"]} == {
            "adaptive budget",
            "int8 keys",
            "preempted",
        }
    sampled = named["sampled tokens"]
    assert sampled.status == "consistent"
    assert found.bound == sampled.bound < 0.15
    counts = sampled.evidence["samples"].values()
    assert all(one["accepted draft tokens"] > 100 for one in counts)
    assert {f"exact distribution: rule {name}" for name in RULES.own} <= named.keys()
    assert json.loads(json.dumps(found.as_json()))["status"] == "consistent"


def test_every_condition_has_texts_with_accepted_draft_tokens(
    plain: LLM, monkeypatch
) -> None:
    monkeypatch.setattr(run, "QUICK_TURNS", len(SETUPS))
    for other in ("_rules", "_bits", "_samples"):
        monkeypatch.setattr(run, other, lambda *_: [])
    limit = plain.target.cache_tokens
    draftings = load_all(plain, (), ("predicted",), bundled=True)
    found = checks(examine(plain, draftings, QUICK))
    evidence = found["same text: predicted"].evidence
    assert evidence["left out"] == {}
    for name in ("preempted", "int8 keys", "regex", "penalties", "stop texts"):
        counts = evidence["conditions"][name]
        assert counts["with accepted draft tokens"] > 0, name
    assert evidence["conditions"]["adaptive budget"]["texts"] > 0
    assert (plain.target.kv, plain.target.cache_tokens) == (None, limit)


@pytest.mark.slow
def test_drafter_that_writes_into_the_text_is_found(plain: LLM, meddling) -> None:
    found = examine(plain, [Drafting("meddling", meddling())], QUICK)
    check = checks(found)["same text: meddling"]
    assert {found.status, check.status} == {"differs"}
    first = check.evidence["first differences"][0]
    assert first["kind"] == "fault"
    assert first["plain"] != first["drafted"]


@pytest.mark.slow
def test_drafter_that_is_never_right_proves_nothing(plain: LLM) -> None:
    wrong = Foresight(lambda sequence: [8000] * 512)
    found = checks(examine(plain, [Drafting("wrong", wrong)], QUICK))
    assert found["same text: wrong"].status == "cannot say"
    assert found["sampled tokens"].status == "cannot say"


def test_rule_that_keeps_a_token_unseen_is_found(plain: LLM, monkeypatch) -> None:
    draftings = load_all(plain, (), ("lm",), bundled=True)
    eager = replace(RULES["match"], follow=None, verify=too_eager)
    monkeypatch.setitem(RULES, "match", eager)
    found = checks(examine(plain, draftings, QUICK))
    assert found["same text: lm"].status == "differs"
    assert found["sampled tokens"].status == "differs"


def test_rule_with_another_distribution_is_found(monkeypatch) -> None:
    honest = RULES["rejection"]

    def eager(weights, draft, noise):
        return honest.verify(weights, draft, replace(noise, accept=noise.accept * 0.1))

    monkeypatch.setitem(RULES, "rejection", replace(honest, verify=eager))
    assert check_rule("rejection", 0).status == "differs"
    assert check_rule("block", 0).status == "consistent"


def test_method_without_its_source_is_refused(plain: LLM) -> None:
    with pytest.raises(InvalidRequest, match="cannot certify method 'eagle': it needs"):
        load_all(plain, (), ("eagle",), bundled=False)


def test_pair_decides_which_methods_are_certified(plain: LLM) -> None:
    names = [one.name for one in load_all(plain, (), (), bundled=True)]
    assert names[:2] == ["lm", "ngram"]
    assert not {"none", "cascade", "eagle"} & {*names}
    alone = [one.name for one in load_all(plain, (), (), bundled=False)]
    assert alone == names[1:]


def test_several_drafts_are_certified_each_with_its_method(plain: LLM) -> None:
    drafts = (str(bundled.draft()), str(bundled.head("eagle")))
    names = [one.name for one in load_all(plain, drafts, (), bundled=True)]
    assert names[:2] == [f"lm ({drafts[0]})", f"eagle ({drafts[1]})"]
    (only,) = load_all(plain, drafts, ("eagle",), bundled=False)
    assert type(only.drafter).__name__ == "EagleDrafter"


@pytest.mark.slow
def test_the_whole_certificate() -> None:
    found = certify(CertifyOptions(minutes=0.1))
    assert found.status == "consistent", found.as_json()
    statuses = {check.status for check in found.checks}
    assert statuses <= {"consistent", "cannot say"}
