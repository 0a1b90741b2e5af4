"""Keys and values of the target: how much is held, read once, and given up."""

from dataclasses import replace

import pytest
import torch

import tiny_models
import zoo
from foreword import LLM
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword.model.backend import Backend
from foreword.model.executors.native.build import build
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.kv.limit import key_bytes
from foreword.native.forward import library
from foreword.types import SamplingParams
from grids import NEEDS_C, grid
from running import (
    Case,
    drafter,
    emptied,
    engine,
    finish,
    outputs,
    plain,
    pool_bytes,
    prompts,
    target,
)


def covered(*cases: tuple[str, str]) -> pytest.MarkDecorator:
    """Every method with both dtypes: on a CPU, pool runs float32, native bfloat16."""
    axes = (["none", "ngram", "lm"], ["float32", "bfloat16"])
    own = grid(cases, *axes, in_c=lambda case: case[1] == "bfloat16")
    return pytest.mark.parametrize(("name", "dtype"), own)


QUICK = "float32" if isinstance(library(), str) else "bfloat16"
"""The dtype of the tests whose subject it is not."""
CHAT = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


class Counting:
    """A backend that counts the rows that are read through it."""

    def __init__(self, inner: Backend) -> None:
        self._inner, self.rows = inner, 0

    def read(self, reads: list[Read]) -> torch.Tensor:
        self.rows += sum(len(read.tokens) for read in reads)
        return self._inner.read(reads)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.fixture
def counted(monkeypatch):
    """Counts the rows that a model reads, from an empty cache on."""

    def counting(model: Model) -> Counting:
        emptied(model)
        monkeypatch.setattr(model, "backend", Counting(model.backend))
        return model.backend

    return counting


@pytest.fixture
def limited(monkeypatch):
    """Gives a model a limit, and its own one back afterwards."""

    def limit(model: Model, tokens: int) -> None:
        emptied(model)
        monkeypatch.setattr(model.backend.pool, "limit", tokens)

    return limit


@pytest.mark.parametrize("drive", [PoolBackend, pytest.param(build, marks=NEEDS_C)])
def test_memory_held_is_little_more_than_that_of_the_tokens(drive):
    model = tiny_models.build("llama-gqa").to(torch.bfloat16).eval()
    if drive is PoolBackend:
        model.set_attn_implementation("foreword")
    backend = drive(model)
    lengths = [520 + 37 * number for number in range(8)]
    sizes = model.config
    heads = sizes.num_hidden_layers * sizes.num_key_value_heads
    row = 2 * heads * sizes.head_dim * 2
    for number in lengths:
        backend.open(number, 4096)
    for start in range(0, max(lengths), 100):
        left = {n: min(100, n - start) for n in lengths if n > start}
        backend.read([Read(n, start, [7] * size, keep=0) for n, size in left.items()])
    assert 1 < backend.pool.used / sum(lengths) <= 1.1
    assert 1 < pool_bytes(backend.pool) / (row * sum(lengths)) <= 1.15


@covered(("ngram", "float32"), ("lm", "bfloat16"))
def test_second_turn_does_not_read_the_first_again(name, dtype, counted):
    model = target(dtype)
    loop = engine(model, drafter(name, dtype), 4)
    counter = counted(model)
    (first,) = finish(loop, [Case((prompts()[3] * 60)[:800], CHAT)])
    said = (*first.request.tokens, *prompts()[4])
    assert counter.rows >= first.request.prompt
    assert first.request.stats.cached == 0
    counter.rows = 0
    (second,) = finish(loop, [Case(said, CHAT)])
    stats = second.request.stats
    assert len(said) - len(prompts()[4]) - 1 - 64 <= stats.cached < len(said)
    assert stats.cached % 64 == 0
    scored = stats.drafted + stats.tokens
    assert counter.rows <= len(said) - stats.cached + scored
    assert len(said) > 10 * (len(said) - stats.cached), "there would be nothing to see"
    emptied(model)
    assert second.said == plain(model, [Case(said, CHAT)])[0].said
    if name != "none":
        assert stats.accepted > 0


def test_draft_model_does_not_read_the_first_turn_again(counted):
    own = drafter("lm", QUICK)
    loop = engine(target(QUICK), own, 4)
    counter = counted(own.model)
    (first,) = finish(loop, [Case((prompts()[3] * 20)[:500], CHAT)])
    counter.rows = 0
    (second,) = finish(loop, [Case((*first.request.tokens, *prompts()[4]), CHAT)])
    assert second.request.stats.accepted > 0
    assert second.request.stats.rounds > 1
    assert counter.rows < 300, "the end of the text, and draft tokens"


def test_requests_of_one_tenant_share_pages():
    model, common = target(QUICK), (prompts()[3] * 20)[:300]
    emptied(model)
    loop = engine(model, slots=8, chunk=128)
    before = loop.load
    params = SamplingParams(temperature=0, max_tokens=4)
    requests = [
        Case((*common, *prompt), replace(params, tenant=tenant))
        for tenant in ("", "someone")
        for prompt in prompts()[:3]
    ]
    answers = finish(loop, requests)
    cached = [one.request.stats.cached for one in answers]
    assert cached[0] == cached[3] == 0
    assert all(192 <= cached[place] <= 256 for place in (1, 2, 4, 5))
    after = loop.load
    assert after.prefix_hits - before.prefix_hits == sum(cached)
    queries = sum(len(one.prompt) for one in requests)
    assert after.prefix_queries - before.prefix_queries == queries
    emptied(model)
    assert outputs(answers) == outputs(plain(model, requests))


def shifted(text: tuple[int, ...], count: int, tokens: int) -> list[Case]:
    """Return requests that begin one token later each, at several temperatures."""
    long = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return [
        Case(text[at : at + 90], replace(long, temperature=0.5 * (at % 3), seed=at))
        for at in range(count)
    ]


@pytest.mark.sample(2)
@covered(("lm", "float32"), ("lm", "bfloat16"))
def test_text_under_a_small_limit_is_that_of_requests_alone(name, dtype, limited):
    model = target(dtype)
    requests = shifted(prompts()[3] * 9, 5, 44)  # beyond the second page
    loop = engine(model, drafter(name, dtype), 3)
    limited(model, 6 * 64)
    most, waits = [], []
    sequences = [request.request(model.eos) for request in requests]
    for sequence in sequences:
        loop.add(sequence)
    while not loop.idle:
        loop.step()
        most.append(loop.load.kv_held)
        waits.append(loop.load.waiting)
    assert max(most) <= 6 * 64 == loop.load.kv_capacity
    assert loop.load.preemptions > 0
    assert max(waits) > 0
    assert (loop.load.running, loop.load.waiting, loop.load.kv_used) == (0, 0, 0)
    limited(model, 10**6)
    alone = [one.tokens for one in plain(model, requests)]
    assert [one.tokens[one.prompt :] for one in sequences] == alone
    if name != "none":
        assert sum(one.stats.accepted for one in sequences) > 0


@NEEDS_C
@pytest.mark.parametrize("family", ["gemma3", "qwen3.5"])
def test_windows_and_recurrent_states_are_the_same_after_giving_way(family):
    model, twin = (
        Model(tiny_models.build(family).to(torch.bfloat16).eval()) for _ in range(2)
    )
    text = [(7 * place) % 90 + 3 for place in range(200)]
    requests = shifted(tuple(text), 6, 48)
    alone = [one.tokens for one in plain(model, requests)]
    loop = engine(model, LanguageModelDrafter(twin), 3)
    emptied(model)
    model.cache_tokens = 12 * 64
    got = finish(loop, requests)
    assert loop.load.preemptions > 0
    assert [one.tokens for one in got] == alone
    assert sum(answer.request.stats.accepted for answer in got) > 0


def test_worst_priority_gives_way_and_returns_first(limited):
    model = target(QUICK)
    limited(model, 10 * 64)
    texts = [(prompts()[3] * 9)[shift : shift + 100] for shift in range(5)]
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    params = [replace(long, priority=priority) for priority in (0, 1, 1, 0, 0)]
    loop = engine(model)
    cases = map(Case, texts, params)
    sequences = [case.request(model.eos) for case in cases]
    first, second, third, fourth, fifth = sequences
    for sequence in (first, second, third):
        loop.add(sequence)
    loop.step()
    assert loop.scheduler.running == [first, second, third]
    begun = third.moments.begun
    while not loop.load.preemptions:
        loop.step()
    assert loop.scheduler.running == [first, second]
    assert third.cached == 0
    assert third.produced > 0
    loop.add(fourth)
    loop.add(fifth)
    while third not in loop.scheduler.running:
        loop.step()
    assert fourth in loop.scheduler.running or fourth.finish_reason
    ended = []
    while not loop.idle:
        loop.step()
        ended += [one for one in sequences if one.finish_reason and one not in ended]
    assert len(ended) == 5
    assert [one.produced for one in ended] == [60] * 5
    assert third.moments.begun == begun != fourth.moments.begun


def test_request_that_can_never_fit_is_refused_at_once():
    with LLM(cache_tokens=512) as llm:
        assert llm.engine.load.kv_capacity == 512
        for prompt, most in (([5] * 100, 400), ([5] * 490, 1)):
            with pytest.raises(InvalidRequest, match=r"request: .* cache_tokens=512\."):
                llm.generate(prompt, SamplingParams(max_tokens=most))
        assert llm.engine.load.prefix_queries == 0
        long = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
        done = llm.generate([5] * 100, long)[0]
        assert len(done.tokens) == 300
    for wrong in (0, -1):
        with pytest.raises(InvalidRequest, match="cache_tokens must be None or"):
            LLM(cache_tokens=wrong)


def test_aborted_requests_free_their_places_at_once(limited):
    model = target()
    limited(model, 100 * 64)
    loop = engine(model, slots=2)
    running, other, waiting = (
        Case(prompts()[3], CHAT).request(model.eos) for _ in range(3)
    )
    for sequence in (running, other, waiting):
        loop.add(sequence)
    loop.step()
    assert (loop.load.running, loop.load.waiting) == (2, 1)
    loop.abort(waiting)
    assert (loop.load.running, loop.load.waiting) == (2, 0)
    used = loop.load.kv_used
    loop.abort(running)
    assert (loop.load.running, loop.load.kv_used < used) == (1, True)
    loop.abort(other)
    assert loop.idle
    assert loop.load.kv_used == 0
    assert loop.load.kv_held <= 100 * 64


def test_default_limit_follows_free_memory():
    model = target()
    default = model.cache_tokens
    try:
        model.cache_tokens = 640
        assert model.cache_tokens == 640
        model.cache_tokens = None
        assert model.cache_tokens == pytest.approx(default, rel=0.9)
        assert 10_000 < model.cache_tokens < 2**40
    finally:
        model.cache_tokens = default


@pytest.mark.parametrize("kind", ["llama", "gemma4_text"])
def test_heads_of_several_sizes_are_counted_by_layer(kind):
    """The bytes of a token are those that the model's layers write."""
    hf = zoo.build(kind)
    modules = dict(hf.named_modules())
    attentions = [modules[name] for name in modules if name.endswith("self_attn")]
    assert len(attentions) == hf.config.num_hidden_layers
    written = [attention.k_proj.out_features for attention in attentions]
    assert key_bytes(hf) == 2 * sum(written) * 4
