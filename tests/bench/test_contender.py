"""A timed driver offers what the driver inside offers, no more and no less, and counts the seconds of all of it."""

from time import sleep

import pytest
import torch

from architectures import VOCAB, build
from foreword.bench.contender import TimedChainingDriver, TimedDriver, timed
from foreword.model import Mode, Model, Read
from foreword.model.driver import Chaining, Driver
from foreword.native.llama import library

NAP = 0.002


class Plain:
    """The smallest driver."""

    mode = Mode.TREE

    def __init__(self) -> None:
        self.said: list[tuple] = []

    def open(self, id, capacity):
        self.said.append(("open", id, capacity))

    def close(self, id):
        self.said.append(("close", id))

    def read(self, reads):
        sleep(NAP)
        return torch.zeros(sum(read.keep for read in reads), VOCAB)

    def move(self, id, source, start):
        self.said.append(("move", id, source, start))


class Fast(Plain):
    """One that draws chains as well."""

    def chain(self, read, count, temperature, noise):
        sleep(NAP)
        self.said.append(("chain", read, count, temperature, noise))
        return list(range(count))


@pytest.fixture
def model() -> Model:
    return Model(build("llama"))


@pytest.mark.parametrize(("driver", "chains"), [(Plain, False), (Fast, True)])
def test_timing_hides_nothing_and_adds_nothing(model, driver, chains):
    model.driver = driver()
    found = timed(model)
    assert isinstance(found, Driver)
    assert isinstance(found, Chaining) is isinstance(found, TimedChainingDriver) is chains
    assert timed(model) is model.driver is found
    assert (model.chain(Read(1, 0, [5]), 2, 0.0, None) is not None) is chains


def test_calls_reach_the_driver_inside_and_their_seconds_are_counted(model):
    model.driver = inside = Fast()
    found = timed(model)
    model.open(1, 9)
    assert model.read([Read(1, 0, [5, 6], keep=2)]).shape == (2, VOCAB)
    assert (found.reads, found.seconds >= NAP) == (1, True)
    read, noise = Read(1, 2, [7]), torch.zeros(3, VOCAB)
    assert model.chain(read, 3, 0.5, noise) == [0, 1, 2]
    assert (found.reads, found.seconds >= 2 * NAP) == (1 + 3, True)
    model.move(1, [4], 3)
    model.close(1)
    assert inside.said == [("open", 1, 9), ("chain", read, 3, 0.5, noise), ("move", 1, [4], 3), ("close", 1)]


@pytest.mark.skipif(isinstance(library(), str), reason="this machine cannot run the compiled driver")
def test_a_compiled_driver_keeps_its_chains_while_it_is_timed():
    model = Model(build("llama").to(torch.bfloat16))
    assert isinstance(timed(model), TimedChainingDriver)
    model.open(1, 16)
    assert len(model.chain(Read(1, 0, [5, 6]), 3, 0.0, None) or []) == 3


def test_a_driver_without_chains_is_timed_without_them(model):
    assert type(timed(model)) is TimedDriver
