"""A timed driver offers what the driver inside offers, no more and no less, and counts
the seconds of all of it.
"""

from time import sleep

import pytest
import torch

from foreword.bench.engine_entry import TimedBackend, TimedTreeBackend, _models, timed
from foreword.draft.ensemble.fuse import FusedDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.model import Mode, Model, Read
from foreword.model.backend import Backend, GrowsTrees
from foreword.model.view import Skipping
from foreword.native.forward import library
from foreword.native.tree import GrownTree, TreeRequest
from tiny_models import VOCAB, build

NAP = 0.002


class Plain:
    """The smallest driver."""

    mode, copies, pool = Mode.TREE, True, None

    def __init__(self) -> None:
        self.said: list[tuple] = []

    def open(self, id, capacity, tokens=(), tenant=""):
        self.said.append(("open", id, capacity))
        return 0

    def close(self, id):
        self.said.append(("close", id))

    def read(self, reads):
        sleep(NAP)
        return torch.zeros(sum(read.keep for read in reads), VOCAB)

    def move(self, id, source, start):
        self.said.append(("move", id, source, start))


class Fast(Plain):
    """One that grows trees as well."""

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree:
        sleep(NAP)
        self.said.append(("grow", read, ask))
        return GrownTree(
            [5, 6, 7], [-1, 0, 0], [0.5, 0.3, 0.1], [5, 6], [-1, 0], [([5], [1.0])] * 3
        )


def ask(most: int = 3, noise: torch.Tensor | None = None) -> TreeRequest:
    return TreeRequest(
        most, 8, most, 16, 32, 0.0, 0.0 if noise is None else 0.5, 0.6, noise, ()
    )


@pytest.fixture
def model() -> Model:
    return Model(build("llama"))


@pytest.mark.parametrize(("backend", "grows"), [(Plain, False), (Fast, True)])
def test_timing_hides_nothing_and_adds_nothing(model, backend, grows):
    model.backend = backend()
    found = timed(model)
    assert isinstance(found, Backend)
    assert isinstance(found, GrowsTrees) is isinstance(found, TimedTreeBackend) is grows
    assert timed(model) is model.backend is found
    assert (model.grow(Read(1, 0, [5]), ask()) is not None) is grows


def test_calls_reach_the_driver_inside_and_their_seconds_are_counted(model):
    model.backend = inside = Fast()
    found = timed(model)
    model.open(1, 9)
    assert model.read([Read(1, 0, [5, 6], keep=2)]).shape == (2, VOCAB)
    assert (found.reads, found.seconds >= NAP) == (1, True)
    read, asked = Read(1, 2, [7]), ask(noise=torch.zeros(3, VOCAB))
    grown = model.grow(read, asked)
    assert grown is not None
    assert grown.tokens == [5, 6, 7]
    assert (found.reads, found.seconds >= 2 * NAP) == (1 + 3, True)
    model.move(1, [4], 3)
    model.close(1)
    assert inside.said == [
        ("open", 1, 9),
        ("grow", read, asked),
        ("move", 1, [4], 3),
        ("close", 1),
    ]


@pytest.mark.skipif(
    isinstance(library(), str), reason="this machine cannot run the compiled driver"
)
def test_a_compiled_driver_keeps_its_trees_while_it_is_timed():
    model = Model(build("llama").to(torch.bfloat16))
    assert isinstance(timed(model), TimedTreeBackend)
    model.open(1, 16)
    grown = model.grow(Read(1, 0, [5, 6]), ask())
    assert grown is not None
    assert len(grown.tokens) >= 3


def test_a_driver_without_trees_is_timed_without_them(model):
    assert type(timed(model)) is TimedBackend


def test_what_else_a_driver_offers_is_offered_too():
    class Thin(Plain):
        def skip(self, skip):
            self.said.append(("skip", skip))

    thin = Thin()
    backend = TimedBackend(thin)
    assert isinstance(backend, Skipping)
    backend.skip("some")
    assert thin.said == [("skip", "some")]
    assert not isinstance(TimedBackend(Plain()), Skipping)


def test_a_forward_that_is_overheard_is_counted_too():
    model = Model(build("llama"))
    found = timed(model)
    model.open(1, 16)
    logits, heard = model.read_hidden([Read(1, 0, [5, 6, 7])], (1,))
    assert (len(logits), len(heard)) == (1, 3)
    assert found.reads == 1
    assert found.seconds > 0


def test_a_model_that_a_drafter_holds_twice_is_counted_once():
    drafter = LanguageModelDrafter(Model(build("llama")))
    assert _models(drafter) == [drafter.model]
    assert len(_models(FusedDrafter([drafter, NgramDrafter()]))) == 1
