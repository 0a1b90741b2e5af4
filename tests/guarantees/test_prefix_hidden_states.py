"""Hidden states kept with earlier texts' pages: drafts are as if read anew."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

import tiny_models
from asking import assistant, user
from foreword import LLM, Completion, bundled
from foreword.draft.base import Drafter, chosen
from foreword.draft.ensemble.cascade import CascadeDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.model import Model, Read
from foreword.types import Batch, Draft, Request, SamplingParams
from grids import NEEDS_C, grid, slow_case
from running import (
    Answer,
    Case,
    drafter,
    emptied,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
)

PAGE = 64
PARAMS = [
    SamplingParams(temperature=0, max_tokens=44, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=4, max_tokens=24, ignore_eos=True),
]
COVERED = (("dspark", "float32"), ("dspark", "bfloat16"))
"""Cases of `make test`: torch's states and C's; other heads get theirs likewise."""


def made(name: str, dtype: str) -> Drafter:
    if name == "cascade":
        members = [drafter(one, dtype) for one in ("eagle", "lm", "medusa")]
        return CascadeDrafter(members)
    return drafter(name, dtype)


def answered(name: str, dtype: str, asked: list[Case]) -> list[Answer]:
    """Answer requests one after another, each with a new drafter."""
    found = []
    for request in asked:
        found += finish(engine(target(dtype), made(name, dtype), 4), [request])
    return found


def counts(answer) -> tuple[object, ...]:
    stats = answer.request.stats
    return answer.said, stats.rounds, stats.drafted, stats.accepted


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "dtype"),
    grid(
        COVERED,
        ["eagle", "dspark", "dflash", "medusa", "cascade"],
        ["float32", "bfloat16"],
        in_c=lambda case: case[1] == "bfloat16",
    ),
)
def test_second_turns_read_only_what_is_new(name, dtype):
    model, text = target(dtype), prompts()[3] * 9
    firsts = [
        Case(text[9 * number : 9 * number + 150], params)
        for number, params in enumerate(PARAMS)
    ]
    emptied(model)
    first = answered(name, dtype, firsts)
    seconds = [
        Case((*one.request.tokens, *prompts()[2]), one.request.params) for one in first
    ]
    got = answered(name, dtype, seconds)
    anew = []
    for request in seconds:
        emptied(model)
        anew += answered(name, dtype, [request])
    for one, other in zip(got, anew, strict=True):
        assert other.request.stats.cached == 0
        assert one.request.stats.cached in (128, 192)
        assert one.said == other.said
        if name != "cascade":  # whose drafts depend on measured times
            assert counts(one) == counts(other)
    assert sum(answer.request.stats.accepted for answer in got) > 0
    emptied(model)
    assert outputs(got) == outputs(plain(model, seconds))


def second_turn(method: str, *, reuse: bool) -> Completion:
    """With fixed sizes of drafts, since default ones depend on measured times."""
    asked = [user("Tell me a story about a river. " * 8)]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    head = bundled.head(method)
    with LLM(bundled.target(), method=method, draft=head, nodes=5) as llm:
        first = llm.chat(asked, params)
        asked += [assistant(first.text), user("And what then?")]
        if not reuse:
            llm.target.backend.pool.prefixes.clear()
        return llm.chat(asked, params)


@pytest.mark.parametrize("method", ["eagle", slow_case("dspark")])
def test_the_second_turn_of_a_chat_with_the_bundled_heads(method):
    second, anew = second_turn(method, reuse=True), second_turn(method, reuse=False)
    assert second.stats.cached >= PAGE
    assert anew.stats.cached == 0
    assert second.text == anew.text
    assert second.stats.accepted == anew.stats.accepted > 0
    assert second.stats.drafted == anew.stats.drafted


class Recorder(Drafter):
    """Keeps the hidden states that it gets, by sequence, and drafts nonsense."""

    def __init__(self, *layers: int) -> None:
        self.hidden_layers = layers
        self.got: dict[int, list[Tensor]] = {}

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return chosen([[7] * count for count in nodes])

    def on_hidden_states(self, sequence: Request, start: int, hidden: Tensor) -> None:
        held = self.got.setdefault(sequence.id, [])
        assert start == sum(map(len, held)), "each token once, and in order"
        held.append(hidden)


@cache
def built(family: str) -> Model:
    hf = tiny_models.build(family)
    hf.config.max_position_embeddings = 1024
    return Model(hf.to(torch.bfloat16).eval())


def text(count: int, seed: int = 3) -> tuple[int, ...]:
    dice = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, tiny_models.VOCAB, (count,), generator=dice).tolist())


def check(model: Model, recorder: Recorder, answer) -> None:
    """Check that all states have the bits of a text read in one piece."""
    tokens = answer.request.tokens[:-1]
    model.open(-7, len(tokens))
    read = Read(-7, 0, tokens, keep=0)
    _, expected = model.read_hidden([read], recorder.hidden_layers)
    model.close(-7)
    assert torch.equal(torch.cat(recorder.got[answer.request.id]), expected)


MODELS = {
    "float32": lambda: target("float32"),
    "native": lambda: target("bfloat16"),
    "qwen3.5": lambda: built("qwen3.5"),
    "lfm2": lambda: built("lfm2"),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("chunk", [50, 512])
@pytest.mark.parametrize(
    "kind", ["float32", *(pytest.param(kind, marks=NEEDS_C) for kind in [*MODELS][1:])]
)
def test_kept_hidden_states_have_the_bits_of_computed_ones(kind, chunk):
    model, common = MODELS[kind](), text(200)
    recurrent = kind in ("qwen3.5", "lfm2")
    params = SamplingParams(temperature=0, max_tokens=35, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    recorder = Recorder(2, 1)
    loop = engine(model, recorder, 2, chunk=chunk)
    emptied(model)
    cached = []
    for request in [Case((*common, *text(90, seed)), params) for seed in (5, 6, 7)]:
        (first,) = finish(loop, [request])
        (second,) = finish(loop, [Case((*first.request.tokens, *text(30)), short)])
        cached += [first.request.stats.cached, second.request.stats.cached]
        for one in (first, second):
            check(model, recorder, one)
    assert cached == [0, 320, 0 if recurrent else 192, 320, 192, 320]
    assert loop.failed is None


def test_pages_without_hidden_states_are_read_again_once():
    model, words = target(), prompts()[3] * 5
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    emptied(model)

    def cached(own: Drafter, tokens: tuple[int, ...]) -> int:
        (answer,) = finish(engine(model, own, 2), [Case(tokens, params)])
        if isinstance(own, Recorder):
            check(model, own, answer)
        return answer.request.stats.cached

    short, long = words[:100], words[:140]
    for own, tokens, count in (
        (NgramDrafter(), short, 0),
        (NgramDrafter(), long, 64),
        (Recorder(3), long, 0),
        (Recorder(3), long, 128),
        (NgramDrafter(), long, 128),
        (Recorder(1, 3), short, 0),
        (Recorder(1, 3), long, 64),
        (Recorder(3, 1), long, 128),
        (Recorder(3), long, 128),
    ):
        assert cached(own, tokens) == count
    states = [one.hidden for one in pages(model)]
    assert [sorted(one) for one in states] == [[1, 3]] * 2
    for rows in (rows for one in states for rows in one.values()):
        assert rows.shape == (PAGE, model.hf.config.hidden_size)
        assert rows.untyped_storage().nbytes() == rows.nbytes


def pages(model: Model):
    found = [*model.backend.pool.prefixes._roots.values()]
    for one in found:
        found += one.children.values()
    return [one for one in found if one.parent is not None]


def test_a_drafter_that_is_off_needs_no_hidden_states():
    """Beside one that is on, and reads those of other layers."""
    model, words = target(), prompts()[3] * 5
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    emptied(model)
    loop, other = engine(model, Recorder(3), 2), Recorder(1)
    beside = loop.speculator(other, loop.rule, loop.budget)
    off, on = (Case(words[:140], params).request(model.eos) for _ in range(2))
    off.undrafted = "it failed"
    loop.add(off)
    loop.add(on, beside)
    while not loop.idle:
        loop.step()
    assert off.tokens == on.tokens
    assert set(loop.drafter.got) == set()
    assert set(other.got) == {on.id}
    (again,) = finish(loop, [Case(words[:140], params)])
    assert again.request.stats.cached == 0, "these states are of another layer"
