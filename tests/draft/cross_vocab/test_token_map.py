"""Two vocabularies of one text: images, spellings, roles, shared probability."""

import pytest
import torch

from foreword.draft.cross_vocab.token_map import TokenMap
from foreword.draft.cross_vocab.vocabulary import Vocabulary
from foreword.errors import VocabularyMismatch
from other_tokenizers import FAR, NEAR, pair, shuffled
from running import tokenizer


@pytest.mark.parametrize("how", [NEAR, FAR])
def test_token_goes_to_one_of_same_text_or_is_spelt(how):
    both, places = pair(how), shuffled()
    translation = both.translation
    missing = [token for token in range(260, 8192) if token % how.one_in == 0]
    assert (translation.to_draft == -1).nonzero().flatten().tolist() == sorted(
        [*missing, 1, 3]
    )
    known = (translation.to_draft >= 0).nonzero().flatten()
    assert translation.to_draft[known].tolist() == places[known].tolist()
    for token in (*missing[:50], 262, 700):
        assert both.draft.text(translation.spellings[token]) == both.target.text(
            [token]
        )
    assert both.draft.text(translation.spellings[1]) == b"<|user|>", (
        "an unknown role is read by its name"
    )


def test_special_tokens_are_found_by_role_or_name():
    translation, places = pair(NEAR).translation, shuffled()
    assert translation.to_draft[[0, 2]].tolist() == places[[0, 2]].tolist()
    assert translation.to_target[places[0]] == 0


def test_shared_tokens_are_one_to_one():
    drafts, targets = pair(FAR).translation.shared
    assert len(drafts) == len(set(drafts.tolist())) == len(set(targets.tolist())) > 4000
    assert bool((pair(FAR).translation.to_draft[targets] == drafts).all())


def test_ids_without_token_are_spelt_somehow_and_never_drafted():
    ours = Vocabulary(tokenizer(), 8200)
    translation = TokenMap.between(ours, pair(NEAR).draft)
    assert [len(spelling) for spelling in translation.spellings[8192:]] == [1] * 8
    assert 8195 not in translation.to_target.tolist()


def test_mass_is_the_share_of_the_distribution():
    translation = pair(FAR).translation
    logits = torch.full((2, 8192), -100.0)
    # one of them is missing
    logits[0, shuffled()[[300, 301]]] = torch.tensor([1.0, 1.0])
    logits[1, shuffled()[303]] = 1.0
    assert translation.mass(logits) == pytest.approx(0.75)


def test_vocabularies_with_nothing_in_common_are_refused():
    ours, theirs = pair(NEAR).target, Vocabulary(NEAR.tokenizer(), 8192)
    theirs.ids, theirs.roles = {b"\xff\xff": 5}, {}
    with pytest.raises(VocabularyMismatch, match="share no token"):
        TokenMap.between(ours, theirs)
