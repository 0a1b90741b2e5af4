"""Recurrent states kept with pages of earlier texts: exact, bounded, reused."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import tiny_models
from drafters import Foresight, RandomTree, known
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.lookup.recycle import RecyclingDrafter
from foreword.draft.none import NoDrafter
from foreword.model import Model, Read
from foreword.model.executors.native.recurrent import SLOTS, StateMemory
from foreword.types import SamplingParams
from grids import NEEDS_C
from running import Answer, Case, emptied, engine, finish, of_length, outputs, plain

pytestmark = NEEDS_C

FAMILIES = ["qwen3.5", "lfm2"]
PAGE = 64
SPOILT = dict(spoilt=0.3, vocab=tiny_models.VOCAB)
DRAFTERS = {
    "none": lambda *_: NoDrafter(),
    "ngram": lambda *_: NgramDrafter(),
    "recycle": lambda *_: RecyclingDrafter(),
    "a chain": lambda _, answers: Foresight(known(answers), **SPOILT),
    "a tree": lambda _, answers: RandomTree(known(answers), **SPOILT),
    "nonsense": lambda _, answers: Foresight(
        known(answers), **SPOILT | {"spoilt": 1.0}
    ),
    "its twin": lambda family, _: LanguageModelDrafter(built(family)),
}


def built(family: str) -> Model:
    hf = tiny_models.build(family)
    hf.config.max_position_embeddings = 1024
    return Model(hf.to(torch.bfloat16).eval())


@cache
def target(family: str) -> Model:
    return built(family)


def text(count: int, seed: int = 3) -> list[int]:
    return torch.randint(
        3, tiny_models.VOCAB, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


def conversations() -> list[Case]:
    """First turns; the second ends at a border of pages, as the third's answer does."""
    kinds = [(200, 0.0, 40), (192, 0.8, 30), (150, 0.6, 42), (60, 0.0, 100)]
    return [
        Case(tuple(text(length, seed)), of_length(most, heat, seed=seed))
        for seed, (length, heat, most) in enumerate(kinds)
    ]


@cache
def turns(family: str):
    """The answers to first and second turns, and to these, where nothing is reused."""
    first = [alone(family, request) for request in conversations()]
    asked = [
        Case((*one.request.tokens, *text(20, 9)), one.request.params) for one in first
    ]
    answers = [alone(family, request) for request in asked]
    assert {one.request.stats.cached for one in (*first, *answers)} == {0}
    return first, asked, answers


def alone(family: str, request: Case) -> Answer:
    emptied(target(family))
    return plain(target(family), [request])[0]


@pytest.mark.sample(5)
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_second_turns_read_only_what_is_new(family, name, slots):
    model = target(family)
    first, asked, answers = turns(family)
    loop = engine(model, DRAFTERS[name](family, [*first, *answers]), 5, slots=slots)
    emptied(model)
    assert outputs(finish(loop, conversations())) == outputs(first)
    got = finish(loop, asked)
    assert outputs(got) == outputs(answers)
    assert loop.failed is None
    for request, one in zip(conversations(), got, strict=True):
        said = len(request.prompt) + request.params.max_tokens
        assert said - 1 - PAGE <= one.request.stats.cached <= said
    if name in ("recycle", "a chain", "a tree", "its twin"):
        assert sum(answer.request.stats.accepted for answer in got) > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("chunk", [37, 128, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_third_text_starts_where_the_first_two_parted(family, chunk):
    model, common = target(family), text(300)
    requests = [Case((*common, *text(200, seed)), of_length(8)) for seed in range(5, 8)]
    answers = [alone(family, request) for request in requests]
    emptied(model)
    loop = engine(model, chunk=chunk)
    got = [finish(loop, [request])[0] for request in (*requests, requests[0])]
    assert [one.request.stats.cached for one in got] == [0, 0, 256, 448]
    assert outputs(got) == outputs((*answers, answers[0]))


def states_of(backend):
    return backend.memory(StateMemory).sequences


@pytest.fixture
def backend(request):
    backend = target(request.param).backend
    emptied(target(request.param))
    assert backend.memory(StateMemory) is not None
    yield backend
    for name in (1, 2):
        backend.close(name)


@pytest.mark.parametrize("backend", FAMILIES, indirect=True)
@pytest.mark.parametrize("pieces", [(300,), (100, 200), (64, 64, 172), (1, 250, 40, 9)])
def test_kept_state_has_the_bits_of_a_computed_one(backend, pieces):
    """Also one that a forward passed, with draft tokens after it."""
    words, draft_tokens = text(300), text(11, 4)
    backend.open(1, 900, words)
    start = 0
    for count in pieces:
        last = start + count == 300
        tokens = words[start : start + count] + (draft_tokens if last else [])
        backend.read(
            [Read(1, start, tokens, keep=len(draft_tokens) + 1 if last else 0)]
        )
        start += count
    (kept,) = [one for one in backend.pool[1].path if one.state is not None]
    assert backend.pool[1].path.index(kept) * PAGE == 256
    if pieces[-1] > 44:
        assert states_of(backend)[1].state.folded == 256, (
            "the forward that passes the border stops there"
        )
    backend.open(2, 900)
    backend.read([Read(2, 0, words[:256], keep=0)])
    state = states_of(backend)[2].copied()
    assert all(map(torch.equal, kept.state, state))
    rows = [
        backend.read([Read(1, 300, draft_tokens[:5], keep=5)]),
        backend.read([Read(2, 256, words[256:] + draft_tokens[:5], keep=5)]),
    ]
    assert torch.equal(*rows)
    assert states_of(backend)[1].state.folded == 301
    backend.close(1)
    assert backend.open(1, 900, words[:257]) == 256
    assert torch.equal(
        backend.read([Read(1, 256, words[256:] + draft_tokens[:5], keep=5)]), rows[0]
    )
    assert all(map(torch.equal, kept.state, state)), (
        "a sequence that goes on from it changes a copy"
    )


@pytest.mark.parametrize("backend", FAMILIES, indirect=True)
def test_states_of_unshared_texts_are_not_kept(backend):
    backend.open(1, 900)
    backend.read([Read(1, 0, text(400), keep=1)])
    assert states_of(backend)[1].state.folded == 400
    assert states_of(backend)[1].state.slots == SLOTS
    assert not backend.pool.prefixes._states


def test_states_take_bounded_memory_and_end_with_their_pages():
    config = tiny_models.build("qwen3.5").config
    config.linear_value_head_dim = 64  # a state takes the memory of four pages
    model = Model(tiny_models.random(config).to(torch.bfloat16).eval())
    pool, loop = model.backend.pool, engine(model)
    states = pool.prefixes._states
    params = of_length(80)
    model.cache_tokens = 12 * PAGE
    for seed in range(8):
        finish(loop, [Case(tuple(text(150, seed)), params)])
        assert all(one.state is not None for one in states)
        assert len(states) == 2, "every text leaves two"
        assert (
            sum(part.nbytes for one in states for part in one.state)
            <= 12 * PAGE * pool.row_bytes
        )
    (again,) = finish(loop, [Case(tuple(text(150, 7)), params)])
    assert again.request.stats.cached == 128
    model.cache_tokens = 5 * PAGE
    (again,) = finish(loop, [Case(tuple(text(150, 1)), params)])
    assert again.request.stats.cached == 0
    assert len(states) == 1
    pool.prefixes.clear()
    assert not states
    model.cache_tokens = 3 * PAGE
    finish(loop, [Case(tuple(text(150)), replace(params, max_tokens=2))])
    assert not states, "there is no room for one"


def test_a_state_ends_with_its_page():
    model = built("lfm2")
    loop, states = engine(model), model.backend.pool.prefixes._states
    model.cache_tokens = 4 * PAGE
    for seed in range(4):
        params = SamplingParams(temperature=0, max_tokens=2)
        finish(loop, [Case(tuple(text(150, seed)), params)])
        assert len(states) == 1, "the second text has taken the last page of the first"
