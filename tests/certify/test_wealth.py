"""Bets on drawn tokens: fair against honest laws, and as strong as they say."""

import math

import numpy as np
import pytest

from foreword_lab.certify.law.differences import families, lenient, tilted, warmth
from foreword_lab.certify.law.rows import Row, Rows
from foreword_lab.certify.law.wealth import ERROR, POWER, Ledger, enough, log_mean

CELLS = 12
RUNS = 20
DIFFERENCES = [one for family in families(drafted=True) for one in family]


def rows(count: int, seed: int, *, sure: float = 1.0) -> Rows:
    """Return rows of random laws, of different sizes, with a drafter's."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(dice.integers(CELLS // 2, CELLS))
        law = dice.dirichlet(np.full(size, sure))
        law = np.append(np.sort(law[:-1])[::-1], law[-1])
        draft = dice.dirichlet(8 * law + 0.1)
        made.append(
            Row(
                law,
                int(dice.choice(size, p=law)),
                draft,
                dice.random(size) < 0.1,
                dice.random(size) < 0.3,
                dice.uniform(-1, 1, size),
                dice.integers(0, 4, size).astype(float),
                float(dice.uniform(-1, 1)),
            )
        )
    return Rows.joined(made)


def drawn_from(batch: Rows, laws: np.ndarray, seed: int) -> Rows:
    """Return the rows with tokens of other laws."""
    dice = np.random.default_rng(seed)
    uniform = dice.random((len(batch), 1))
    cells = (np.cumsum(laws, 1) < uniform).sum(1)
    values = {name: getattr(batch, name) for name in batch.__slots__}
    return Rows(**{**values, "drawn": np.minimum(cells, laws.shape[1] - 1)})


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one.name)
def test_wealth_has_the_mean_one_under_the_stated_law(difference) -> None:
    """The sum over all tokens of p times q/p: the other law must be a law, and zero
    where the stated one is.
    """
    batch = rows(200, 1)
    laws = difference.laws(batch)
    assert laws.shape == (200, difference.strengths, CELLS - 1)
    assert (laws >= 0).all()
    np.testing.assert_allclose(laws.sum(-1), 1, atol=1e-9)
    assert (laws[np.broadcast_to(batch.law[:, None] == 0, laws.shape)] < 1e-12).all()


def test_other_cells_stay_last_in_rows_of_different_sizes() -> None:
    batch = rows(50, 2)
    assert batch.law[:, -1].min() > 0
    assert (batch.law[np.arange(50), batch.drawn] > 0).all()
    np.testing.assert_allclose(batch.law.sum(1), 1)


@pytest.mark.parametrize("runs", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_honest_tokens_are_not_accused(runs: int) -> None:
    """Whenever the run ends; about ERROR of the runs are, at most."""
    accused = 0
    for seed in range(runs):
        ledger = Ledger(2, drafted=True)
        for turn in range(5):
            ledger.take(rows(60, 1000 * seed + turn), turn % 2)
        accused += ledger.differs
    assert accused <= 1 + 3 * ERROR * runs


@pytest.mark.parametrize(
    "name",
    [
        "fewer tokens from rank 6 on",
        "more likely tokens",
        "more tokens by what the drafter likes",
        "unverified draft tokens",
    ],
)
def test_stated_difference_is_found_as_often_as_stated(name: str) -> None:
    """At a strength whose total variation is what the ledger says that it finds."""
    batch = rows(800, 3)
    ledger = Ledger(drafted=True)
    ledger.take(batch)
    bet = next(one for one in ledger.shared if one.difference.name == name)
    laws = bet.difference.laws(batch)
    variation = np.abs(laws - batch.law[:, None]).sum(-1).mean(0) / 2
    strength = int(np.argmax(variation >= bet.finds(800, 800)))
    found = 0
    for seed in range(RUNS):
        run = Ledger(drafted=True)
        run.take(drawn_from(batch, laws[:, strength], seed))
        found += run.differs
    assert found >= 0.8 * RUNS
    assert POWER == 0.9


def test_effect_is_the_size_of_the_difference() -> None:
    batch = rows(4000, 4)
    laws = lenient(batch)
    variation = np.abs(laws - batch.law[:, None]).sum(-1).mean(0) / 2
    ledger = Ledger(drafted=True)
    ledger.take(drawn_from(batch, laws[:, 3], 5))
    assert ledger.differs
    best, low, high = ledger.effect.variation
    assert low <= variation[3] <= high
    assert best == pytest.approx(variation[3], rel=0.5)


def test_tokens_of_one_source_alone_are_found() -> None:
    """A server that cheats at one temperature only."""
    cool, _ = tilted("likely tokens", warmth)
    ledger = Ledger(4, drafted=False)
    for source in range(4):
        batch = rows(600, 10 + source)
        if source == 2:
            batch = drawn_from(batch, cool.laws(batch)[:, 7], 6)
        ledger.take(batch, source)
    assert ledger.differs
    assert ledger.effect.name == "more likely tokens"


def test_needed_gain_is_that_of_a_normal_number() -> None:
    """Its share above the threshold is POWER: with a mean of x and a variance of 2 x."""
    gain = enough(5.0)
    below = (gain - 5.0) / math.sqrt(2 * gain)
    share = (1 + math.erf(below / math.sqrt(2))) / 2
    assert share == pytest.approx(POWER, abs=1e-4)
    assert math.exp(log_mean([0.0, math.log(3)])) == pytest.approx(2)
