"""A draft model that computes some of its logits drafts from these; no text changes."""

import pytest
import torch

import gguf_files
import starter
import tiny_models
from foreword import LLM, SamplingParams
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.vocabulary import RECENT, DraftVocabulary
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from running import prompts

FIRST = 2500
"""Ids of the draft vocabulary, of 8,192; most answers hold others too."""
TEXT = list(range(40, 75))


@pytest.fixture(
    scope="module", params=["bfloat16", "int8", "int4", "Q8_0", "Q4_0", "phi"]
)
def model(request, tmp_path_factory) -> Model:
    form = request.param
    if form == "phi":  # its head has a bias
        return Model(tiny_models.build("phi").bfloat16())
    if form.startswith("Q"):
        small = gguf_files.small(tmp_path_factory.mktemp("vocabulary"))
        file = gguf_files.quantized(small, small.with_name("few.gguf"), form)
        return Model.load(file)
    weights = None if form == "bfloat16" else form
    return Model.load(starter.draft(), dtype="bfloat16", weights=weights)


def logits(model: Model, keep: int) -> torch.Tensor:
    model.open(-1, len(TEXT))
    found = model.read([Read(-1, 0, TEXT, keep=keep)])
    model.close(-1)
    return found


def drafter(llm: LLM) -> LanguageModelDrafter:
    return llm.session.engine.default.drafter


def test_logits_of_the_ids_are_the_same(model):
    rows = (1, 2, 3, 5, 17, 33)
    whole = [logits(model, keep) for keep in rows]
    last = model.vocab - 1
    for first, others in ((64, {5}), (100, {last // 3, last}), (1, {last, 300})):
        ids = model.backend.limit_head(first, others).tolist()
        assert {*range(first), *others} <= {*ids}
        assert len(ids) <= 64 * (2 + len(others))
        for keep, all_of_them in zip(rows, whole, strict=True):
            assert torch.equal(logits(model, keep), all_of_them[:, ids])


@pytest.mark.parametrize("rule", ["match", "traversal"])
@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_text_stays_and_holds_other_ids(rule, heat):
    params = SamplingParams(temperature=heat, seed=5, max_tokens=40)
    texts = [list(one) for one in prompts()[:3]]
    plain = LLM(starter.target(), method="none").generate(texts, params)
    options = {"rule": rule, "nodes": 5, "draft_vocabulary": FIRST}
    llm = LLM(starter.target(), draft=starter.draft(), **options)
    answers = llm.generate(texts, params)
    if rule == "match" or not heat:
        assert [one.tokens for one in answers] == [one.tokens for one in plain]
    assert sum(one.stats.accepted for one in answers) > 5
    ids = {*drafter(llm).draft_vocabulary.tokens.tolist()}
    assert {*range(FIRST), *llm.target.eos} <= ids
    assert len(ids) < llm.target.vocab / 2
    rare = {token for text in texts for token in text if token >= FIRST}
    assert bool(rare - ids) == (rule != "match")


def test_ids_of_texts_are_forgotten_when_they_are_many():
    model = Model.load(starter.draft(), dtype="bfloat16")
    ids = DraftVocabulary(model, FIRST, {2})
    held = []
    for start in range(FIRST, model.vocab - 100, 100):
        ids.read(range(start, start + 100))
        ids.limit(texts=True)
        held.append({*ids.tokens.tolist()})
        assert {*range(start, start + 100)} <= held[-1]
    assert max(map(len, held)) <= FIRST + 64 * (RECENT + 2)
    assert FIRST + 100 not in held[-1]


def test_a_number_beyond_the_vocabulary_is_all_of_it():
    models = dict(draft=starter.draft(), method="lm")
    llm = LLM(starter.target(), **models, draft_vocabulary=10**9)
    llm.generate("The", SamplingParams(max_tokens=4))
    assert drafter(llm).draft_vocabulary.tokens is None


def test_a_model_that_was_given_keeps_its_head():
    model = Model.load(starter.draft())
    llm = LLM(starter.target(), draft=model, nodes=3, draft_vocabulary=FIRST)
    llm.generate("The", SamplingParams(max_tokens=4))
    assert drafter(llm).draft_vocabulary is None
    assert logits(model, 1).shape == (1, model.vocab)


def test_no_ids_are_refused():
    with pytest.raises(InvalidRequest, match="draft_vocabulary must be None or a"):
        LLM(starter.target(), draft=starter.draft(), draft_vocabulary=0)
