"""Drafting in shared tokens: what is drafted, how often it is kept, and which
distribution a rule is told.
"""

import pytest
import torch

from foreword.draft.cross_vocab.tli import IntersectionDrafter, RemappedBackend
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.native.cpu import fast_bfloat16
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, SamplingParams
from other_tokenizers import FAR, NEAR, Foreign, pair
from running import (
    DTYPE,
    Case,
    distribution,
    draft,
    engine,
    finish,
    plain,
    prompts,
    target,
    tokenizer,
)

TEMPERATURES = (
    *(pytest.param(heat, marks=pytest.mark.slow) for heat in (0.0, 0.7)),
    1.3,
)


def requests(temperature: float) -> list[Case]:
    params = [
        SamplingParams(temperature=temperature, seed=s, max_tokens=24, ignore_eos=True)
        for s in range(6)
    ]
    return [Case(prompts()[seed % 5], one) for seed, one in enumerate(params)]


def accepted(drafter, temperature: float, rule: str = "match") -> int:
    answers = finish(
        engine(target(DTYPE), drafter, 3, rule=rule), requests(temperature)
    )
    return sum(answer.sequence.stats.accepted for answer in answers)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", [NEAR, pytest.param(FAR, marks=pytest.mark.slow)])
def test_the_text_is_that_of_plain_decoding(how, temperature):
    loop = engine(target(DTYPE), IntersectionDrafter(pair(how, DTYPE)), 3)
    got = finish(loop, requests(temperature))
    assert [answer.said for answer in got] == [
        answer.said for answer in plain(target(DTYPE), requests(temperature))
    ]
    assert loop.failed is None
    assert sum(answer.sequence.stats.accepted for answer in got) > 20


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_renumbered_vocabulary_drafts_the_same(temperature):
    """Ids shuffled, nothing missing: the draft tokens are those of the family's own
    draft model.
    """
    renamed = IntersectionDrafter(pair(Foreign(one_in=8192, renamed=False), DTYPE))
    assert accepted(renamed, temperature) == accepted(
        LanguageModelDrafter(draft(DTYPE)), temperature
    )


@pytest.mark.skipif(
    not fast_bfloat16(), reason="trees are grown in one call by the bfloat16 driver"
)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", [NEAR, FAR])
def test_tree_in_one_call_is_tree_level_by_level(how, temperature):
    both = pair(how, "bfloat16")
    slow = IntersectionDrafter(both)
    slow.model.backend = RemappedBackend(
        both.model.backend, both.translation, both.model.context, both.model.device
    )
    sequences = tuple(
        request.sequence(target(DTYPE).eos) for request in requests(temperature)[:5]
    )
    batch = Batch(sequences, NoiseStreams(8192, shared=True))
    ours = IntersectionDrafter(both).propose(batch, [8] * 5)
    theirs = slow.propose(batch, [8] * 5)
    assert not ours.chain
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.parents, theirs.parents)
    torch.testing.assert_close(
        ours.probabilities, theirs.probabilities, atol=1e-3, rtol=1e-2
    )


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rules_get_the_renormalised_distribution(rule):
    drafter, temperature = IntersectionDrafter(pair(FAR, DTYPE)), 0.9
    sequence = Case(
        prompts()[3], SamplingParams(temperature=temperature, seed=1)
    ).sequence(target(DTYPE).eos)
    draft_token = drafter.propose(
        Batch((sequence,), NoiseStreams(8192, shared=False)), [3]
    )
    drafts, targets = pair(FAR, DTYPE).translation.shared
    ids = [
        spelt
        for token in sequence.tokens
        for spelt in pair(FAR, DTYPE).translation.spellings[token]
    ]
    theirs = (distribution(pair(FAR, DTYPE).model, ids)[-1] / temperature).softmax(-1)[
        drafts
    ]
    q = torch.zeros(8192).index_put((targets,), theirs / theirs.sum())
    torch.testing.assert_close(draft_token.probs[0, 0], q, atol=1e-5, rtol=1e-3)
    assert theirs.sum() < 0.98, "else there is nothing to renormalise"
    assert accepted(drafter, temperature, rule) > 20


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.7, marks=pytest.mark.slow), 1.3]
)
def test_acceptance_follows_the_two_distributions(temperature):
    """One draft token a round under `rejection`: kept with the probability sum_x min(p,
    q') (Leviathan et al. 2023).
    """
    asked = [
        Case(
            prompts()[s % 5],
            SamplingParams(
                temperature=temperature, seed=s, max_tokens=32, ignore_eos=True
            ),
        )
        for s in range(20)
    ]
    answers = finish(
        engine(
            target(DTYPE), IntersectionDrafter(pair(NEAR, DTYPE)), 1, rule="rejection"
        ),
        asked,
    )
    drafts, targets = pair(NEAR, DTYPE).translation.shared
    kept, probabilities = [], []
    for answer in answers:
        tokens, place = answer.sequence.tokens, answer.sequence.prompt
        spellings = [pair(NEAR, DTYPE).translation.spellings[token] for token in tokens]
        p = (distribution(target(DTYPE), tokens) / temperature).softmax(-1)
        theirs = distribution(
            pair(NEAR, DTYPE).model, [spelt for ids in spellings for spelt in ids]
        )
        for delta in answer.deltas:
            if delta.drafted:
                row = theirs[sum(map(len, spellings[:place])) - 1]
                q = (
                    torch.full((8192,), -torch.inf)
                    .index_put((targets,), row[drafts] / temperature)
                    .softmax(-1)
                )
                kept.append(float(delta.origins[0] == "accepted"))
                probabilities.append(torch.minimum(p[place - 1], q).sum())
            place += len(delta.tokens)
    expected, surplus = torch.stack(probabilities).double(), torch.tensor(kept).double()
    error = (expected * (1 - expected)).sum().sqrt() / len(kept)
    assert error < 0.03, "too few rounds to say anything"
    assert abs((surplus - expected).mean()) < 3 * error


def test_a_model_without_its_tokenizer_cannot_be_translated():
    for source in (None, draft(DTYPE)):
        with pytest.raises(InvalidRequest, match="Give draft='folder or hub id'"):
            IntersectionDrafter.load(source, target(DTYPE), tokenizer())


def test_a_target_without_its_tokenizer_cannot_be_translated(tmp_path):
    with pytest.raises(VocabularyMismatch, match="the target has no tokenizer here"):
        IntersectionDrafter.load(tmp_path, target(DTYPE), None)


def test_a_folder_is_enough(tmp_path):
    drafter = IntersectionDrafter.load(NEAR.save(tmp_path), target(DTYPE), tokenizer())
    assert accepted(drafter, 0.0) > 50
