"""A model behind a translation scores what the model itself scores, whatever was read,
moved, or taken back before.
"""

from itertools import count

import pytest
import torch
from torch import Tensor

from foreword.draft.cross_vocab.tli import MARGIN, translated
from foreword.model import Model, Read
from foreword.model.backend import Mode
from foreword.native.cpu import fast_bfloat16
from foreword.sampling.noise import extend, gumbel
from foreword.types.growth import TreeRequest
from other_tokenizers import FAR, NEAR, pair
from running import prompts

TEXT = list(prompts()[1] + prompts()[3])
MISSING, OTHER = 700, 900
"""Tokens that the draft of FAR spells with several of its own."""
_ids = count(1000)


def spelt(tokens: list[int]) -> list[int]:
    return [
        text_id
        for token in tokens
        for text_id in pair(FAR).translation.spellings[token]
    ]


def own(tokens: list[int]) -> Tensor:
    """What the draft model itself says after a text, among shared tokens, in target
    ids.
    """
    model, (drafts, targets) = pair(FAR).model, pair(FAR).translation.shared
    model.open(999, 4096)
    ids = spelt(tokens)
    logits = model.read([Read(999, 0, ids)])[0]
    model.close(999)
    return torch.full((8192,), -torch.inf).index_put((targets,), logits[drafts])


def opened(capacity: int = 400) -> tuple[Model, int]:
    model, text_id = translated(pair(FAR).model, pair(FAR).translation), next(_ids)
    model.open(text_id, capacity)
    return model, text_id


def same(found: Tensor, tokens: list[int]) -> None:
    torch.testing.assert_close(found, own(tokens), atol=1e-3, rtol=1e-4)


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
    distribution = (
        pair(FAR).model.read([Read(text_id + 5000, 0, spelt(TEXT))]).softmax(-1)[0]
    )
    pair(FAR).model.close(text_id + 5000)
    torch.testing.assert_close(
        row[targets],
        distribution[drafts] / distribution[drafts].sum(),
        atol=1e-5,
        rtol=1e-3,
    )


def test_draft_tokens_are_taken_back():
    model, text_id = opened()
    model.read([Read(text_id, 0, [*TEXT[:10], MISSING, OTHER])])
    same(model.read([Read(text_id, 10, TEXT[10:12])])[0], TEXT[:12])


def test_each_sequence_of_a_batch_gets_its_scores():
    model, text_id = opened()
    model.open(other := next(_ids), 400)
    found = model.read(
        [Read(text_id, 0, [*TEXT[:9], MISSING], keep=2), Read(other, 0, TEXT[5:12])]
    )
    for row, text in zip(
        found, (TEXT[:9], [*TEXT[:9], MISSING], TEXT[5:12]), strict=True
    ):
        same(row, text)


def test_tree_of_translated_tokens_is_scored():
    # text → MISSING → 300 → 301; text → 302 → OTHER → 303; read in two parts, the
    # second branch stays
    model, text_id = opened()
    text, tokens = TEXT[:10], [MISSING, 302, 300, OTHER, 301, 303]
    parents = [-1, -1, 0, 1, 2, 3]
    paths = [
        [MISSING],
        [302],
        [MISSING, 300],
        [302, OTHER],
        [MISSING, 300, 301],
        [302, OTHER, 303],
    ]
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
    assert len(spelt(text)) + MARGIN <= pair(FAR).model.context, (
        "else the beginning is forgotten"
    )
    for start in range(0, len(text), 100):
        model.read([Read(text_id, start, text[start : start + 100], keep=0)])
    same(model.read([Read(text_id, len(text), [5])])[0], [*text, 5])


def test_text_longer_than_context_is_followed_by_its_end():
    model, text_id = opened(capacity=1)
    context, text = pair(FAR).model.context, (TEXT * 60)[:1400]
    for start in range(0, len(text), 350):
        found = model.read([Read(text_id, start, text[start : start + 350])])[0]
        assert bool(found.isfinite().any())
    start = next(
        start for start in range(len(text)) if len(spelt(text[start:])) < context // 2
    )
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
    grown = model.grow(
        Read(text_id, 0, TEXT),
        TreeRequest(6, 1, 6, 16, 32, 0.0, temperature, 0.6, key, ()),
    )
    assert grown is not None
    draft_tokens = grown.tokens
    assert len(draft_tokens) == 6
    for place, draft_token in enumerate(draft_tokens):
        (row,) = model.read(
            [
                Read(
                    text_id,
                    len(TEXT) - 1 + place,
                    [[*TEXT, *draft_tokens][len(TEXT) - 1 + place]],
                )
            ]
        )
        assert draft_token == int(
            row.argmax()
            if key is None
            else (row / temperature + gumbel([key], len(row))[0]).argmax()
        )
        key = None if key is None else extend(key, draft_token)
    model.read([Read(text_id, len(TEXT) + 4, [draft_tokens[4]])])
    model.close(text_id)


def test_the_model_itself_is_left_as_it_was():
    model = pair(NEAR).model
    backend = model.backend
    view = translated(model, pair(NEAR).translation)
    assert model.backend is backend
    assert view.mode is Mode.TREE
    assert (view.vocab, view.dtype, view.device) == (8192, model.dtype, model.device)
