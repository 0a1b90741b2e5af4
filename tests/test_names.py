"""A method, rule or budget that is no name is refused, with the names there are."""

import pytest

from foreword import InvalidRequest, UnknownMethod
from foreword.budget import policy
from foreword.draft import method
from foreword.draft.lookup.suffix import AnswerStore, SuffixDrafter
from foreword.verify import rule
from running import Case, engine, finish, of_length, outputs, plain, prompts, target

DTYPE = "bfloat16"


METHOD = (method, r"use method .*ngram")
RULE = (rule, "match, rejection")
BUDGET = (policy, "adaptive, heuristic")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("find", "names", "wrong"),
    [
        *((*METHOD, wrong) for wrong in (3, "", True, [], {}, b"lm")),
        *((*RULE, wrong) for wrong in (3, None, "", [], b"match")),
        *((*BUDGET, wrong) for wrong in (3, "", 0, [], b"adaptive", False)),
    ],
)
def test_what_is_no_name_is_refused_with_the_names(find, names, wrong):
    with pytest.raises((InvalidRequest, UnknownMethod), match=names):
        find(wrong)


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
    asked = [Case(prompt, of_length(24)) for prompt in prompts()]
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
