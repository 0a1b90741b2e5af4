"""A timed backend offers what the inner one does, and sums its forwards' seconds."""

import pytest
import torch

from foreword import LLM, SamplingParams
from foreword.draft.ensemble.cascade import CascadeDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.model import Mode, Model, Read
from foreword.model.backend import Backend
from foreword.model.kv.memories import Remembers
from foreword.native.forward import library
from foreword.types.growth import GrownTree, TreeRequest
from foreword_lab.bench import timed as timing
from foreword_lab.bench.timed import TimedBackend, timed, timed_drafts
from tiny_models import VOCAB, build

FORWARD = 2.0
"""Seconds of a forward, by the clock of the test."""


class Plain(Remembers):
    """The smallest backend."""

    mode, copies, pool = Mode.TREE, True, None

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.now = 0.0

    def open(self, id, capacity, tokens=(), tenant=""):
        self.calls.append(("open", id, capacity))
        return 0

    def close(self, id):
        self.calls.append(("close", id))

    def read(self, reads):
        self.now += FORWARD
        return torch.zeros(sum(read.keep for read in reads), VOCAB)

    def move(self, id, source, start):
        self.calls.append(("move", id, source, start))


class Fast(Plain):
    """A backend that grows trees as well."""

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        self.now += FORWARD
        self.calls.append(("grow", read, ask))
        return GrownTree(
            [5, 6, 7], [-1, 0, 0], [0.5, 0.3, 0.1], [5, 6], [-1, 0], [([5], [1.0])] * 3
        )


def ask(most: int = 3) -> TreeRequest:
    return TreeRequest(most, 8, most, 16, 32, 0.0, 0.0, 0.6, None, ())


@pytest.fixture
def model() -> Model:
    return Model(build("llama"))


@pytest.mark.parametrize(("backend", "grows"), [(Plain, False), (Fast, True)])
def test_timed_backend_has_the_protocols_of_the_inner_one(model, backend, grows):
    model.backend = backend()
    found = timed(model)
    assert isinstance(found, Backend)
    assert hasattr(found, "grow") is grows
    assert timed(model) is model.backend is found
    assert (model.grow(Read(1, 0, [5]), ask()) is not None) is grows


def test_calls_reach_the_inner_backend_and_are_timed(model, monkeypatch):
    model.backend = inside = Fast()
    monkeypatch.setattr(timing, "perf_counter", lambda: inside.now)
    found = timed(model)
    model.open(1, 9)
    assert model.read([Read(1, 0, [5, 6], keep=2)]).shape == (2, VOCAB)
    assert (found.reads, found.seconds) == (1, FORWARD)
    read, request = Read(1, 2, [7]), ask()
    grown = model.grow(read, request)
    assert grown is not None
    assert grown.tokens == [5, 6, 7]
    assert (found.reads, found.seconds) == (1 + 3, 2 * FORWARD)
    model.move(1, [4], 3)
    model.close(1)
    assert inside.calls == [
        ("open", 1, 9),
        ("grow", read, request),
        ("move", 1, [4], 3),
        ("close", 1),
    ]


@pytest.mark.skipif(
    isinstance(library(), str), reason="this machine cannot run the compiled backend"
)
def test_compiled_backend_grows_trees_while_timed():
    model = Model(build("llama").to(torch.bfloat16))
    assert hasattr(timed(model), "grow")
    model.open(1, 16)
    grown = model.grow(Read(1, 0, [5, 6]), ask())
    assert grown is not None
    assert len(grown.tokens) >= 3


def test_other_attributes_reach_the_inner_backend():
    class Thin(Plain):
        def skip(self, skip):
            self.calls.append(("skip", skip))

    thin = Thin()
    backend = TimedBackend(thin)
    backend.skip("some")
    assert thin.calls == [("skip", "some")]
    assert not hasattr(TimedBackend(Plain()), "skip")


def test_read_hidden_is_timed_too():
    model = Model(build("llama"))
    found = timed(model)
    model.open(1, 16)
    logits, states = model.read_hidden([Read(1, 0, [5, 6, 7])], (1,))
    assert (len(logits), len(states)) == (1, 3)
    assert found.reads == 1
    assert found.seconds > 0


def test_model_shared_by_members_is_counted_once():
    drafter = LanguageModelDrafter(Model(build("llama")))
    assert timed_drafts(drafter) == [drafter.model.backend]
    assert len(timed_drafts(CascadeDrafter([drafter, NgramDrafter()]))) == 1


@pytest.mark.parametrize("name", ["eagle", "dspark", "medusa"])
def test_forwards_of_a_head_are_timed(name):
    llm = LLM(method=name)
    (found,) = timed_drafts(llm.engine.drafter)
    assert timed_drafts(llm.engine.drafter) == [found]
    (answer,) = llm.generate("How are you?", SamplingParams(max_tokens=12))
    assert answer.stats.drafted > 0
    assert 0 < found.seconds < answer.stats.propose
