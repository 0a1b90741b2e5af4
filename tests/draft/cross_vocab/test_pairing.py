"""The method for two vocabularies is chosen by what they share of the text at hand."""

import pytest

from contract import CONTRACT, CONTRACT_IN_THE_LOOP, GREEDY, SAMPLED
from foreword.draft import method
from foreword.draft.cross_vocab.pairing import CrossVocabularyDrafter, load_pair
from foreword.registry import SHARED_TEXT, SHARED_TOKENS
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch
from grids import slow_case
from other_tokenizers import FAR, NEAR, pair
from running import DTYPE, Case, engine, finish, plain, prompts, target, tokenizer

EITHER_WAY = [
    (NEAR, 0.9, SHARED_TOKENS),
    (FAR, 0.6, SHARED_TOKENS),
    (FAR, 0.9, SHARED_TEXT),
]
"""Draft models of other tokenizers, the share needed, and the method then used."""
enough = pytest.mark.parametrize("enough", [slow_case(0.0), 1.0])


@enough
def test_contract_is_kept(enough):
    for clause in CONTRACT:
        clause(lambda: CrossVocabularyDrafter(pair(FAR, DTYPE), enough))


@pytest.mark.sample(3)
@enough
@pytest.mark.parametrize(
    "clause", CONTRACT_IN_THE_LOOP, ids=lambda clause: clause.__name__
)
def test_contract_is_kept_in_the_loop(enough, clause):
    clause(lambda: CrossVocabularyDrafter(pair(FAR, DTYPE), enough))


@pytest.mark.parametrize(("how", "enough", "name"), EITHER_WAY)
def test_shared_tokens_are_used_where_they_are_enough(how, enough, name):
    drafter = CrossVocabularyDrafter(pair(how, DTYPE), enough)
    request = Case(prompts()[3], GREEDY).request(target(DTYPE).eos)
    drafter.propose(Batch((request,), NoiseStreams(8192, shared=True)), [2])
    assert type(drafter._drafter) is method(name)


def test_before_the_first_text_there_is_nothing_to_release():
    drafter = CrossVocabularyDrafter(pair(NEAR, DTYPE))
    drafter.release(Case(prompts()[0]).request(target(DTYPE).eos))
    assert drafter._drafter is None


def test_folder_of_another_tokenizer_drafts_and_changes_no_text(tmp_path):
    asked = [
        Case(prompt, params) for prompt in prompts() for params in (SAMPLED, GREEDY)
    ]
    loaded = load_pair(NEAR.save(tmp_path), target(DTYPE), tokenizer())
    loop = engine(target(DTYPE), CrossVocabularyDrafter(loaded), 3)
    got = finish(loop, asked)
    assert [answer.said for answer in got] == [
        answer.said for answer in plain(target(DTYPE), asked)
    ]
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in got) > 20
