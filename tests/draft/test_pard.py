"""A draft model with a mask token drafts a tree from one forward, as its rows say."""

import copy
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch

import starter
import tiny_seq2seq
from folders import copied
from foreword import LLM, SamplingParams
from foreword.draft import default_method
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.pard import MaskedDrafter, mask_token
from foreword.errors import ModelError, VocabularyMismatch
from foreword.model import Model, Read
from foreword.model.loading.hub import MASK_TOKENS
from foreword.types import Batch, Draft
from foreword_train.methods.lm import load
from other_tokenizers import NEAR
from running import (
    DTYPE,
    Case,
    count_accepted,
    drafter,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
    tokenizer,
)

MASK = 0
"""Padding and end of text, which nothing follows in an answer."""
BACKENDS = (
    *((None, 1.0), (None, 0.0), ("pool", 0.0)),
    *(("pool", 1.0), ("cache", 1.0), ("cache", 0.0)),
)
"""(backend of the draft model, temperature)."""
FAMILIES = ((1.0, "t5"), (0.0, "t5"), (0.0, "bart"), (1.0, "bart"))
"""(temperature, encoder-decoder)."""
EVERY_RULE = ("match", "rejection", "block", "traversal")


def some(cases: Iterable[object]) -> list[object]:
    """Return the cases, every second one for `make test-all` alone."""
    found = []
    for at, one in enumerate(cases):
        values = one if isinstance(one, tuple) else (one,)
        found.append(pytest.param(*values, marks=[pytest.mark.slow] if at % 2 else []))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The small draft model, with a mask token that it has not learnt."""
    place = tmp_path_factory.mktemp("masked") / "draft"
    return copied(starter.draft(), place, pard_token=MASK)


def untrained(folder: Path, backend: str | None = None) -> MaskedDrafter:
    return MaskedDrafter(Model.load(folder, dtype=DTYPE, backend=backend))


def asked(heat: float = 0.0, length: int = 24) -> list[Case]:
    return [
        Case(prompt, SamplingParams(temperature=heat, seed=at, max_tokens=length))
        for at, prompt in enumerate(prompts())
    ]


class Counted:
    """A drafter's model, which counts its forwards."""

    def __init__(self, made: LanguageModelDrafter) -> None:
        self.rows: list[list[int]] = []
        self.longest = 0
        """Tokens. Longest text read, masks included."""
        self._read = made.model.read
        made.model.read = self.read

    def read(self, reads: Sequence[Read]) -> torch.Tensor:
        self.rows.append([one.keep for one in reads])
        ends = [one.start + len(one.tokens) for one in reads]
        self.longest = max(self.longest, *ends)
        return self._read(reads)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("backend", "heat"), some(BACKENDS))
def test_text_is_plain_from_one_forward_a_round(folder, backend, heat):
    made = untrained(folder, backend)
    counted = Counted(made)
    loop = engine(target(DTYPE), made, 6)
    rounds = 0
    propose = made.propose

    def counting(*args):
        nonlocal rounds
        rounds += 1
        return propose(*args)

    made.propose = counting
    answers = finish(loop, asked(heat))
    expected = plain(target(DTYPE), asked(heat))
    assert outputs(answers) == outputs(expected)
    assert loop.failed is None
    assert count_accepted(answers) > 0
    assert 0 < len(counted.rows) <= rounds
    # most texts have room for six draft tokens until their end
    assert max(map(max, counted.rows)) == 6


def test_first_draft_token_is_the_draft_models_own(folder):
    """One draft token in a round needs no mask, so both accept the same."""
    both = []
    usual = LanguageModelDrafter(Model.load(folder, dtype=DTYPE))
    for made in (untrained(folder), usual):
        answers = finish(engine(target(DTYPE), made, 1), asked(1.0))
        both.append([one.request.stats.accepted for one in answers])
    assert both[0] == both[1]
    assert sum(both[0]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", some(EVERY_RULE))
def test_rules_accept_draft_tokens(rule):
    made = drafter("pard", DTYPE)
    loop = engine(target(DTYPE), made, 5, rule=rule)
    answers = finish(loop, asked(1.0))
    assert loop.failed is None
    assert count_accepted(answers) > 0


@torch.inference_mode()
def test_masks_predict_as_the_definition_says(folder):
    """In every round, against transformers on text and masks: no mask is left."""
    made = MaskedDrafter(Model.load(folder, dtype="float32"))
    reference = load(folder, torch.float32)
    propose, rounds = made.propose, 0

    def compared(batch: Batch, nodes: Sequence[int]) -> Draft:
        nonlocal rounds
        draft = propose(batch, nodes)
        if draft.nodes:
            rounds += 1
            (one,) = batch.requests
            found = made.blocks.block(one.id)
            masks = [MASK] * (len(found) - 1)
            whole = reference(torch.tensor([[*one.tokens, *masks]])).logits[0]
            wanted = whole[-len(found) :]
            torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
        return draft

    made.propose = compared
    loop = engine(target(), made, 4)
    answer = finish(loop, asked()[1:2])
    assert loop.failed is None
    assert rounds > 4
    # some rounds follow accepted draft tokens
    assert count_accepted(answer) > 2


@pytest.mark.sample(2)
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_trees_in_c_are_those_of_torch(heat):
    texts = []
    for native in (True, False):
        made = drafter("pard", DTYPE)
        if not native:
            made.blocks._grower = None
        drafts: list[Draft] = []
        propose = made.propose

        def kept(*args, propose=propose, drafts=drafts):
            drafts.append(propose(*args))
            return drafts[-1]

        made.propose = kept
        finish(engine(target(DTYPE), made, 12), asked(heat))
        texts.append([tree.tokens for draft in drafts for tree in draft.trees])
    assert texts[0] == texts[1]
    # trees, not only chains
    assert any(len(tokens) == 12 for tokens in texts[0])


def test_tokens_that_only_the_target_has_are_not_drafted(folder):
    model = Model.load(folder, dtype=DTYPE)
    made = MaskedDrafter(model, model.vocab + 64)
    end = Read(9, 0, [5, 6])
    model.open(9, 64)
    made.blocks.queue(made.blocks.masked(end, 3))
    rows = made.blocks.ahead(end)
    assert torch.equal(made.logits([end]), rows[:1])
    assert rows.shape == (3, model.vocab + 64)
    assert (rows[:, model.vocab :] == -math.inf).all()
    assert rows[:, : model.vocab].isfinite().all()


@pytest.mark.slow
def test_draft_context_bounds_the_masks(folder):
    made = untrained(folder)
    longest = max(map(len, prompts()))
    made.model.context = made.blocks.context = longest + 4
    counted = Counted(made)
    answers = finish(engine(target(DTYPE), made, 8), asked(length=24))
    expected = plain(target(DTYPE), asked(length=24))
    assert outputs(answers) == outputs(expected)
    assert count_accepted(answers) > 0
    assert longest < counted.longest <= longest + 4
    made.model.context = made.blocks.context = 4
    counted.rows.clear()
    answers = finish(engine(target(DTYPE), made, 8), asked())
    assert outputs(answers) == outputs(expected)
    assert counted.rows == []


def test_sequences_end_and_leave_nothing(folder):
    made = untrained(folder)
    finish(engine(target(DTYPE), made, 4), asked(1.0))
    assert not made._memories
    assert not made.blocks._blocks
    assert not made.blocks._pending
    twin = made.anew()
    assert twin.calibration is not made.calibration


def test_reused_prefix_drafts_the_same(folder):
    """A text with masks leaves the same pages as the text alone."""
    long = Case(prompts()[3] * 3, SamplingParams(temperature=0, max_tokens=16))
    once, again = untrained(folder), untrained(folder)
    counts = []
    for made, times in ((once, 1), (again, 3)):
        loop = engine(target(DTYPE), made, 6)
        for _ in range(times):
            answer = finish(loop, [long])[0]
        counts.append((answer.said, answer.request.stats.accepted > 0))
    assert counts[0] == counts[1]


def test_config_chooses_the_method(folder, tmp_path):
    assert default_method(folder) == "pard"
    assert default_method(starter.draft()) == "lm"
    other = copied(starter.draft(), tmp_path / "other", **{MASK_TOKENS[1]: 3})
    assert default_method(other) == "pard"
    assert mask_token(Model.load(other, dtype=DTYPE).hf) == 3
    with LLM(starter.target(), draft=folder, nodes=3) as llm:
        assert llm.method == "pard"
        assert llm.generate("The river", SamplingParams(max_tokens=8))[0].tokens


def test_model_without_a_mask_token_is_refused(folder):
    with pytest.raises(ModelError, match="names no mask token"):
        MaskedDrafter.load(starter.draft(), target(DTYPE), tokenizer())
    hf = copy.copy(Model.load(folder, dtype=DTYPE).hf)
    for wrong in (-1, 8192, True, "0"):
        hf.config.pard_token = wrong
        with pytest.raises(ModelError, match="its mask token is"):
            mask_token(hf)


def test_another_tokenizer_is_refused(folder, tmp_path):
    other = copied(folder, tmp_path / "other")
    NEAR.tokenizer().save_pretrained(other)
    with pytest.raises(VocabularyMismatch):
        MaskedDrafter.load(other, target(DTYPE), tokenizer())


@pytest.mark.slow
@pytest.mark.parametrize(("heat", "name"), some(FAMILIES))
def test_an_encoder_decoder_drafts_for_another(name, heat):
    draft = tiny_seq2seq.build(name)
    draft.config.pard_token = draft.config.pad_token_id
    sources = [[70, 80, 90, 70], [100, 61, 62]]
    params = SamplingParams(temperature=heat, seed=2, max_tokens=12)
    texts = {}
    for method in ("none", "pard"):
        model = Model(draft, name) if method == "pard" else None
        built = Model(tiny_seq2seq.build(name), name)
        with LLM(built, method=method, draft=model, nodes=3, tokenizer=False) as llm:
            texts[method] = llm.generate(sources, params)
    assert [a.tokens for a in texts["none"]] == [a.tokens for a in texts["pard"]]
    assert sum(a.stats.accepted for a in texts["pard"]) > 0
