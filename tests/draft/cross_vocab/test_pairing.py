"""The way of drafting is chosen by what the two vocabularies share on the
text at hand.
"""

import pytest

from contract import CONTRACT, CONTRACT_IN_THE_LOOP, GREEDY, SAMPLED
from foreword.draft import method
from foreword.draft.cross_vocab.pairing import CrossVocabularyDrafter, load_pair
from foreword.registry import SHARED_TEXT, SHARED_TOKENS
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch
from running import Request, engine, finish, plain, prompts, target, tokenizer
from strangers import FAR, NEAR, pair

EITHER_WAY = [
    (NEAR, 0.9, SHARED_TOKENS),
    (FAR, 0.6, SHARED_TOKENS),
    (FAR, 0.9, SHARED_TEXT),
]
"""How foreign the draft model is, how much of its law must be shared, and what that
makes of it.
"""


@pytest.mark.parametrize(
    "clause", [*CONTRACT, *CONTRACT_IN_THE_LOOP], ids=lambda clause: clause.__name__
)
@pytest.mark.parametrize("enough", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_the_contract_is_kept_either_way(enough, clause):
    clause(lambda: CrossVocabularyDrafter(pair(FAR), enough))


@pytest.mark.parametrize(("how", "enough", "name"), EITHER_WAY)
def test_shared_tokens_where_they_are_enough(how, enough, name):
    drafter = CrossVocabularyDrafter(pair(how), enough)
    sequence = Request(prompts()[3], GREEDY).sequence(target().eos)
    drafter.propose(Batch((sequence,), NoiseStreams(8192, shared=True)), [2])
    assert type(drafter._drafter) is method(name)


def test_before_the_first_text_there_is_nothing_to_forget():
    drafter = CrossVocabularyDrafter(pair(NEAR))
    drafter.release(Request(prompts()[0]).sequence(target().eos))
    assert drafter._drafter is None


def test_a_folder_of_another_tokenizer_drafts_and_changes_nothing(tmp_path):
    asked = [
        Request(prompt, params) for prompt in prompts() for params in (SAMPLED, GREEDY)
    ]
    loop = engine(
        target(),
        CrossVocabularyDrafter(load_pair(NEAR.save(tmp_path), target(), tokenizer())),
        3,
    )
    got = finish(loop, asked)
    assert [one.said for one in got] == [one.said for one in plain(target(), asked)]
    assert loop.failed is None
    assert sum(one.sequence.stats.accepted for one in got) > 20
