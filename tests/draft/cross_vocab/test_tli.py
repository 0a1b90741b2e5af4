"""Drafting in shared tokens: drafts, acceptance, and the rule's distribution."""

from itertools import count

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from foreword.draft.cross_vocab.tli import (
    MARGIN,
    IntersectionDrafter,
    translated,
)
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Read
from foreword.model.backend import Mode
from foreword.native.cpu import fast_bfloat16
from foreword.sampling.noise import extend, gumbel
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, SamplingParams
from foreword.types.growth import TreeRequest
from grids import slow_case
from other_tokenizers import FAR, NEAR, Foreign, pair
from running import (
    DTYPE,
    Case,
    distribution,
    draft,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
    tokenizer,
)

SLOW = [*map(slow_case, (0.0, 0.7))]
TEMPERATURES = (*SLOW, 1.3)


def requests(temperature: float) -> list[Case]:
    return [case(seed, temperature=temperature, max_tokens=24) for seed in range(6)]


def case(seed: int, **params: float) -> Case:
    options = dict(seed=seed, ignore_eos=True) | params
    return Case(prompts()[seed % 5], SamplingParams(**options))


def accepted(drafter, temperature: float, rule: str = "match") -> int:
    loop = engine(target(DTYPE), drafter, 3, rule=rule)
    answers = finish(loop, requests(temperature))
    return sum(answer.request.stats.accepted for answer in answers)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", [NEAR, slow_case(FAR)])
def test_the_text_is_that_of_plain_decoding(how, temperature):
    loop = engine(target(DTYPE), IntersectionDrafter(pair(how, DTYPE)), 3)
    got = finish(loop, requests(temperature))
    assert outputs(got) == outputs(plain(target(DTYPE), requests(temperature)))
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in got) > 20


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_renumbered_vocabulary_drafts_the_same(temperature):
    """Ids shuffled, none missing: the draft tokens are the family's draft model's."""
    renamed = IntersectionDrafter(pair(Foreign(one_in=8192, renamed=False), DTYPE))
    plain = LanguageModelDrafter(draft(DTYPE))
    assert accepted(renamed, temperature) == accepted(plain, temperature)


@pytest.mark.skipif(
    not fast_bfloat16(), reason="trees are grown in one call by the bfloat16 driver"
)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", [NEAR, FAR])
def test_tree_in_one_call_is_tree_level_by_level(how, temperature):
    both = pair(how, "bfloat16")
    slow = IntersectionDrafter(both)
    slow.model.backend.grow = lambda *_: None  # level by level
    asked = requests(temperature)[:5]
    sequences = [request.request(target(DTYPE).eos) for request in asked]
    batch = Batch(tuple(sequences), NoiseStreams(8192, shared=True))
    ours = IntersectionDrafter(both).propose(batch, [8] * 5)
    theirs = slow.propose(batch, [8] * 5)
    assert not ours.chain
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.parents, theirs.parents)
    for quick, tree in zip(ours.trees, theirs.trees, strict=True):
        assert quick.probabilities == pytest.approx(
            tree.probabilities, abs=1e-3, rel=1e-2
        )


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rules_get_the_renormalised_distribution(rule):
    drafter, temperature = IntersectionDrafter(pair(FAR, DTYPE)), 0.9
    asked = Case(prompts()[3], SamplingParams(temperature=temperature, seed=1))
    sequence = asked.request(target(DTYPE).eos)
    batch = Batch((sequence,), NoiseStreams(8192, shared=False))
    draft_token = drafter.propose(batch, [3])
    drafts, targets = pair(FAR, DTYPE).translation.shared
    spellings = pair(FAR, DTYPE).translation.spellings
    ids = [spelt for token in sequence.tokens for spelt in spellings[token]]
    logits = distribution(pair(FAR, DTYPE).model, ids)[-1]
    theirs = (logits / temperature).softmax(-1)[drafts]
    q = torch.zeros(8192).index_put((targets,), theirs / theirs.sum())
    assert_close(draft_token.probs[0, 0], q, atol=1e-5, rtol=1e-3)
    assert theirs.sum() < 0.98, "else there is nothing to renormalise"
    assert accepted(drafter, temperature, rule) > 20


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [slow_case(0.7), 1.3])
def test_acceptance_follows_the_two_distributions(temperature):
    """One token under `rejection`: kept with sum_x min(p, q') (Leviathan 2023)."""
    asked = [case(seed, temperature=temperature, max_tokens=32) for seed in range(20)]
    drafter = IntersectionDrafter(pair(NEAR, DTYPE))
    answers = finish(engine(target(DTYPE), drafter, 1, rule="rejection"), asked)
    drafts, targets = pair(NEAR, DTYPE).translation.shared
    kept, probabilities = [], []
    for answer in answers:
        tokens, place = answer.request.tokens, answer.request.prompt
        spellings = [pair(NEAR, DTYPE).translation.spellings[token] for token in tokens]
        p = (distribution(target(DTYPE), tokens) / temperature).softmax(-1)
        written = [spelt for ids in spellings for spelt in ids]
        theirs = distribution(pair(NEAR, DTYPE).model, written)
        for delta in answer.deltas:
            if delta.drafted:
                row = theirs[sum(map(len, spellings[:place])) - 1]
                q = only(targets, row[drafts] / temperature).softmax(-1)
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


TEXT = list(prompts()[1] + prompts()[3])
MISSING, OTHER = 700, 900
"""Tokens that the draft of FAR spells with several of its own."""
_ids = count(1000)


def spelt(tokens: list[int]) -> list[int]:
    spellings = pair(FAR).translation.spellings
    return [text_id for token in tokens for text_id in spellings[token]]


def only(ids: Tensor, logits: Tensor) -> Tensor:
    """Logits of these ids; no other one is possible."""
    return torch.full((8192,), -torch.inf).index_put((ids,), logits)


def own(tokens: list[int]) -> Tensor:
    """The draft model's distribution after a text, of shared tokens, in target ids."""
    model, (drafts, targets) = pair(FAR).model, pair(FAR).translation.shared
    model.open(999, 4096)
    ids = spelt(tokens)
    logits = model.read([Read(999, 0, ids)])[0]
    model.close(999)
    return only(targets, logits[drafts])


def opened(capacity: int = 400) -> tuple[Model, int]:
    model, text_id = translated(pair(FAR).model, pair(FAR).translation), next(_ids)
    model.open(text_id, capacity)
    return model, text_id


def same(found: Tensor, tokens: list[int]) -> None:
    assert_close(found, own(tokens), atol=1e-3, rtol=1e-4)


def test_text_is_scored_as_draft_model_scores_its_translation():
    model, text_id = opened()
    assert len(spelt(TEXT)) > len(TEXT) + 5
    model.read([Read(text_id, 0, TEXT[:10], keep=0)])
    found = model.read([Read(text_id, 10, TEXT[10:20], keep=3)])
    assert found.shape == (3, 8192)
    for row, length in zip(found, (18, 19, 20), strict=True):
        same(row, TEXT[:length])


def test_only_shared_tokens_have_probability():
    model, text_id = opened()
    (row,) = model.read([Read(text_id, 0, TEXT)]).softmax(-1)
    drafts, targets = pair(FAR).translation.shared
    assert row[MISSING] == row[OTHER] == 0
    pair(FAR).model.open(text_id + 5000, 400)
    logits = pair(FAR).model.read([Read(text_id + 5000, 0, spelt(TEXT))])[0]
    pair(FAR).model.close(text_id + 5000)
    assert_close(row[targets], logits[drafts].softmax(-1), atol=1e-5, rtol=1e-3)


def test_draft_tokens_are_taken_back():
    model, text_id = opened()
    model.read([Read(text_id, 0, [*TEXT[:10], MISSING, OTHER])])
    same(model.read([Read(text_id, 10, TEXT[10:12])])[0], TEXT[:12])


def test_each_sequence_of_a_batch_gets_its_scores():
    model, text_id = opened()
    model.open(other := next(_ids), 400)
    first = [*TEXT[:9], MISSING]
    found = model.read([Read(text_id, 0, first, keep=2), Read(other, 0, TEXT[5:12])])
    for row, text in zip(found, (TEXT[:9], first, TEXT[5:12]), strict=True):
        same(row, text)


def test_tree_of_translated_tokens_is_scored():
    # text → MISSING → 300 → 301; text → 302 → OTHER → 303; read in two parts, the
    # second branch stays
    model, text_id = opened()
    text, tokens = TEXT[:10], [MISSING, 302, 300, OTHER, 301, 303]
    parents = [-1, -1, 0, 1, 2, 3]
    branches = [MISSING, 300, 301], [302, OTHER, 303]
    paths = [branch[:depth] for depth in (1, 2, 3) for branch in branches]
    first = model.read([Read(text_id, 0, [*text, *tokens[:2]], parents[:2], keep=3)])
    second = model.read([Read(text_id, 10, tokens[2:], parents, keep=4, held=2)])
    for row, path in zip([*first, *second], [[], *paths], strict=True):
        same(row, text + path)
    model.move(text_id, [11, 13], 10)
    same(model.read([Read(text_id, 12, [305])])[0], [*text, 302, OTHER, 305])


def test_branch_that_lies_where_text_goes_on_needs_no_moving():
    model, text_id = opened()
    model.read([Read(text_id, 0, [*TEXT[:10], MISSING, 300, 301], [-1, 0, -1], keep=3)])
    same(model.read([Read(text_id, 12, [305])])[0], [*TEXT[:10], MISSING, 300, 305])


def test_a_text_that_outgrows_its_room_gets_more():
    model, text_id = opened(capacity=1)
    text = (TEXT * 12)[: MARGIN + 60]
    # else the beginning is forgotten
    assert len(spelt(text)) + MARGIN <= pair(FAR).model.context
    for start in range(0, len(text), 100):
        model.read([Read(text_id, start, text[start : start + 100], keep=0)])
    same(model.read([Read(text_id, len(text), [5])])[0], [*text, 5])


def test_text_longer_than_context_is_followed_by_its_end():
    model, text_id = opened(capacity=1)
    context, text = pair(FAR).model.context, (TEXT * 60)[:1400]
    for start in range(0, len(text), 350):
        found = model.read([Read(text_id, start, text[start : start + 350])])[0]
        assert bool(found.isfinite().any())
    places = range(len(text))
    start = next(one for one in places if len(spelt(text[one:])) < context // 2)
    agreed = (found.softmax(-1) - own(text[start:]).softmax(-1)).abs().sum() / 2
    assert agreed < 0.2, "of a long text, the end is what counts"


@pytest.mark.skipif(
    not fast_bfloat16(), reason="trees are grown in one call by the bfloat16 driver"
)
@pytest.mark.parametrize("how", [NEAR, FAR])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_chain_in_one_call_is_chain_step_by_step(how, temperature):
    both = pair(how, "bfloat16")
    model, text_id = translated(both.model, both.translation), next(_ids)
    model.open(text_id, 200)
    key = 7 if temperature else None
    request = TreeRequest(6, 1, 6, 16, 32, 0.0, temperature, 0.6, key, ())
    grown = model.grow(Read(text_id, 0, TEXT), request)
    assert grown is not None
    draft_tokens = grown.tokens
    assert len(draft_tokens) == 6
    last = len(TEXT) - 1
    for place, draft_token in enumerate(draft_tokens, last):
        token = [*TEXT, *draft_tokens][place]
        (row,) = model.read([Read(text_id, place, [token])])
        if key is None:
            assert draft_token == int(row.argmax())
            continue
        noisy = row / temperature + gumbel([key], len(row))[0]
        assert draft_token == int(noisy.argmax())
        key = extend(key, draft_token)
    model.read([Read(text_id, len(TEXT) + 4, [draft_tokens[4]])])
    model.close(text_id)


def test_the_model_itself_is_left_as_it_was():
    model = pair(NEAR).model
    backend = model.backend
    view = translated(model, pair(NEAR).translation)
    assert model.backend is backend
    assert view.mode is Mode.TREE
    assert (view.vocab, view.dtype, view.device) == (8192, model.dtype, model.device)
