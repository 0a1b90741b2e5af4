"""A draft model of another vocabulary drafts on beyond its own short context."""

import copy
from dataclasses import replace

import pytest

from foreword.draft.base import Drafter
from foreword.draft.cross_vocab.pairing import CrossVocabularyDrafter, VocabularyPair
from foreword.draft.cross_vocab.slem import StringMatchDrafter
from foreword.draft.cross_vocab.tli import IntersectionDrafter
from foreword.types import SamplingParams
from grids import slow_case
from other_tokenizers import NEAR, pair
from running import DTYPE, Case, engine, finish, outputs, plain, prompts, target

LONG = prompts()[3] * 12


def short(context: int) -> VocabularyPair:
    """The pair of models whose draft reads this many tokens at most."""
    known = pair(NEAR, DTYPE)
    model = copy.copy(known.model)
    model.context = context
    return replace(known, model=model)


def check(drafter: Drafter, length: int, nodes: int, heat: float) -> int:
    params = SamplingParams(temperature=heat, seed=1, max_tokens=24, ignore_eos=True)
    asked = [Case(LONG[:length], params)]
    loop = engine(target(DTYPE), drafter, nodes)
    got = finish(loop, asked)
    assert loop.failed is None
    assert outputs(got) == outputs(plain(target(DTYPE), asked))
    return got[0].request.stats.accepted


@pytest.mark.parametrize("heat", [slow_case(0.0), 1.0])
@pytest.mark.parametrize(
    ("context", "length"),
    [
        (128, 300),
        (512, 250),
        *(slow_case(*one) for one in ((128, 1), (128, 127), (512, 512))),
    ],
)
def test_shared_tokens_are_drafted_beyond_the_draft_context(context, length, heat):
    accepted = check(IntersectionDrafter(short(context)), length, 16, heat)
    assert accepted > (5 if length > 1 and not heat else 0)


@pytest.mark.parametrize("enough", [slow_case(0.0), 1.0])
def test_pair_goes_on_beyond_the_draft_context(enough):
    check(CrossVocabularyDrafter(short(128), enough), 300, 8, 0.0)


@pytest.mark.slow
def test_retold_text_beyond_the_draft_context_is_not_drafted():
    assert check(StringMatchDrafter(short(128)), 300, 8, 0.0) == 0
    assert check(StringMatchDrafter(short(128)), 40, 8, 0.0) > 0
