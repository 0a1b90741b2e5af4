"""A method, rule or budget that is no name is refused, with the names there are."""

import pytest

from foreword import InvalidRequest, UnknownMethod
from foreword.budget import policy
from foreword.draft import method
from foreword.draft.lookup.suffix import AnswerStore, SuffixDrafter
from foreword.types import SamplingParams
from foreword.verify import rule
from running import Case, engine, finish, outputs, plain, prompts, target

DTYPE = "bfloat16"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [3, "", True, [], {}, b"lm"])
def test_method_that_is_no_name_is_refused(wrong):
    with pytest.raises((InvalidRequest, UnknownMethod), match=r"use method .*ngram"):
        method(wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [3, None, "", [], b"match"])
def test_rule_that_is_no_name_is_refused(wrong):
    with pytest.raises((InvalidRequest, UnknownMethod), match="match, rejection"):
        rule(wrong)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [3, "", 0, [], b"adaptive", False])
def test_budget_that_is_no_name_is_refused(wrong):
    with pytest.raises((InvalidRequest, UnknownMethod), match="adaptive, heuristic"):
        policy(wrong)


@pytest.mark.parametrize(
    "twice",
    [
        "cascade(ngram, ngram)",
        "cascade(suffix, lm, suffix)",
        "cascade(cascade(ngram, lm),cascade(ngram, lm))",
    ],
)
def test_method_that_joins_one_with_itself_is_refused(twice):
    with pytest.raises(InvalidRequest, match="twice"):
        method(twice)


def test_unsaved_history_is_warned_about_once(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    drafter = SuffixDrafter.load(folder / "history", target(DTYPE), None)
    folder.rmdir()
    asked = [
        Case(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
        for prompt in prompts()
    ]
    loop = engine(target(DTYPE), drafter, 4)
    with pytest.warns(RuntimeWarning, match="cannot save past answers") as said:
        got = finish(loop, asked)
    assert len(said) == 1
    assert loop.failed is None
    assert outputs(got) == outputs(plain(target(DTYPE), asked))
    assert sum(answer.request.stats.accepted for answer in got) > 0
    folder.mkdir()
    finish(loop, asked[:1])
    assert len(AnswerStore.load(folder / "history", target(DTYPE).vocab)) > 0
