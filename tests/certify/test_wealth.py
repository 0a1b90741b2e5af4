"""Bets on drawn tokens: fair to an honest server, and as strong as they say."""

import numpy as np
import pytest

from foreword_lab.certify.betting.differences import (
    families,
    learned,
    lenient,
    same_noise,
    tilted,
    warmth,
)
from foreword_lab.certify.betting.rows import Rows
from foreword_lab.certify.betting.wealth import ERROR, POWER, Ledger

CELLS = 12
RUNS = 20
TOKENS = 800
DIFFERENCES = [
    one for family in [*families(drafted=True), *learned()] for one in family
]


def rows(count: int, seed: int) -> Rows:
    """Return rows of random distributions, of different sizes, with a drafter's."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = int(dice.integers(CELLS // 2, CELLS))
        target = dice.dirichlet(np.ones(size))
        target[:-1] = np.sort(target[:-1])[::-1]
        made.append(
            {
                "target": target,
                "drawn": int(dice.choice(size, p=target)),
                "draft": dice.dirichlet(8 * target + 0.1),
                "copied": dice.random(size) < 0.1,
                "recent": dice.random(size) < 0.3,
                "excess": dice.uniform(-1, 1, size),
                "seen": dice.integers(0, 4, size).astype(float),
                "before": float(dice.uniform(-1, 1)),
            }
        )
    return Rows.joined(made)


def drawn_from(batch: Rows, others: np.ndarray, seed: int) -> Rows:
    """Return the rows with tokens of other distributions."""
    dice = np.random.default_rng(seed)
    uniform = dice.random((len(batch), 1))
    cells = (np.cumsum(others, 1) < uniform).sum(1)
    values = {name: getattr(batch, name) for name in batch.__slots__}
    return Rows(**{**values, "drawn": np.minimum(cells, others.shape[1] - 1)})


def variations(batch: Rows, others: np.ndarray) -> np.ndarray:
    return np.abs(others - batch.target[:, None]).sum(-1).mean(0) / 2


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one[0])
def test_wealth_has_the_mean_one_for_an_honest_server(difference) -> None:
    """The sum of p times q/p is one for a distribution q that is zero where p is."""
    batch = rows(200, 1)
    _, others_of, strengths = difference
    others = others_of(batch)
    assert others.shape == (200, strengths, CELLS - 1)
    assert (others >= 0).all()
    np.testing.assert_allclose(others.sum(-1), 1, atol=1e-9)
    absent = np.broadcast_to(batch.target[:, None] == 0, others.shape)
    assert (others[absent] < 1e-12).all()


def test_other_tokens_stay_the_last_cell_in_rows_of_different_sizes() -> None:
    batch = rows(50, 2)
    assert batch.target[:, -1].min() > 0
    assert (batch.target[np.arange(50), batch.drawn] > 0).all()
    np.testing.assert_allclose(batch.target.sum(1), 1)


def test_residual_with_the_noise_of_its_draft_token_is_as_simulated() -> None:
    batch = rows(3, 6)
    others = same_noise(batch)[:, 0]
    dice = np.random.default_rng(7)
    shape = (60_000, batch.target.shape[1])
    for target, draft, expected in zip(batch.target, batch.draft, others, strict=True):
        with np.errstate(divide="ignore"):
            logs = np.log(draft), np.log(np.clip(target - draft, 0, None))
        noise = dice.gumbel(size=shape)
        drafted, residual = ((one + noise).argmax(1) for one in logs)
        takes = dice.random(len(noise)) * draft[drafted] < target[drafted]
        counts = np.bincount(np.where(takes, drafted, residual), minlength=shape[1])
        drawn = counts / len(noise)
        assert np.abs(drawn - expected).sum() / 2 < 0.006
        # else the draft's noise would make no difference here
        assert np.abs(drawn - target).sum() / 2 > 0.012


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
    """At a strength whose total variation is the smallest that the ledger finds."""
    batch = rows(TOKENS, 3)
    ledger = Ledger(drafted=True)
    ledger.take(batch)
    bet = next(one for one in ledger.shared if one.name == name)
    others = bet.others(batch)
    enough_moved = variations(batch, others) >= bet.finds(TOKENS, TOKENS)
    strength = int(np.argmax(enough_moved))
    found = 0
    for seed in range(RUNS):
        run = Ledger(drafted=True)
        run.take(drawn_from(batch, others[:, strength], seed))
        found += run.differs
    assert found >= (POWER - 0.1) * RUNS


def test_effect_is_the_size_of_the_difference() -> None:
    batch = rows(4000, 4)
    others = lenient(batch)
    expected = variations(batch, others)[3]
    ledger = Ledger(drafted=True)
    ledger.take(drawn_from(batch, others[:, 3], 5))
    assert ledger.differs
    interval = ledger.best.interval(4000)
    assert interval is not None
    best, low, high = interval
    assert low <= expected <= high
    assert best == pytest.approx(expected, rel=0.5)


def test_tokens_of_one_source_alone_are_found() -> None:
    """A server that cheats at one temperature only."""
    (_, cooler, _), _ = tilted("likely tokens", warmth)
    ledger = Ledger(4, drafted=False)
    for source in range(4):
        batch = rows(600, 10 + source)
        if source == 2:
            batch = drawn_from(batch, cooler(batch)[:, 7], 6)
        ledger.take(batch, source)
    assert ledger.differs
    assert ledger.best.name == "more likely tokens"
