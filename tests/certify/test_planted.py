"""Servers that cheat over a real pair are found; honest ones are not."""

from collections.abc import Iterator

import pytest

from cheats import draws
from cheats.server import Planted, Scores, planted
from foreword import LLM
from foreword.bundled import draft as bundled_draft
from foreword.registry import PLAIN
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote import sampled
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.drafting import local_draft
from foreword_lab.certify.remote.greedy import greedy_check
from foreword_lab.certify.remote.run import certify_server
from foreword_lab.certify.remote.source import sources
from foreword_lab.certify.report import Check

ONCE = Clock.of(0.1, lambda _: None, quick=True)
FEW, MINUTE = 640, 2000
"""Tokens."""


@pytest.fixture(scope="module")
def local() -> sampled.Drafter:
    return local_draft(str(bundled_draft()))


@pytest.fixture(scope="module")
def scores(plain: LLM) -> Iterator[tuple[Scores, Scores]]:
    with LLM(str(bundled_draft()), method=PLAIN) as draft:
        yield Scores(plain), Scores(draft)


def check_of(url: str, local: sampled.Drafter | None = None) -> Check:
    """Return the check of sampled tokens of all sources."""
    server = Server.at(url)
    named = sources(server, 1, quick=False)
    run = sampled.Run(server, named, 1, local, "local")
    return sampled.sampled_check(run, ONCE, 1.0)


@pytest.mark.parametrize(
    "cheat",
    [draws.likeliest, draws.unverified, draws.unrepeated],
    ids=lambda one: one.__name__,
)
def test_cheat_is_found_without_a_drafter(scores, monkeypatch, cheat) -> None:
    monkeypatch.setattr(sampled, "LEAST", FEW)
    with planted(Planted(*scores, cheat)) as url:
        check = check_of(url)
    assert check.status == "differs", check.what
    assert check.evidence["samples"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cheat",
    [
        *(draws.no_residual, draws.lenient, draws.one_for_many, draws.warmer),
        draws.retried,
    ],
    ids=lambda one: one.__name__,
)
def test_subtle_cheat_is_found_in_a_minute(scores, local, monkeypatch, cheat) -> None:
    monkeypatch.setattr(sampled, "LEAST", MINUTE)
    with planted(Planted(*scores, cheat)) as url:
        check = check_of(url, local)
    assert check.status == "differs", check.what


def test_lossless_drafting_is_consistent(scores, local) -> None:
    """Tokens that were accepted or drawn from the residual, as well as plain ones."""
    with planted(Planted(*scores, draws.lossless)) as url:
        check = check_of(url, local)
    assert check.status == "consistent", check.what
    assert 0 < check.bound < sampled.COARSE
    assert check.evidence["drafter"] == "local"


@pytest.mark.parametrize(
    "cheat", [draws.relaxed, draws.typical], ids=lambda one: one.__name__
)
def test_greedy_token_that_is_not_the_likeliest_is_found(scores, cheat) -> None:
    with planted(Planted(*scores, cheat)) as url:
        server = Server.at(url)
        (source,) = sources(server, 1, quick=True)
        check = greedy_check(server, source)
    assert check.status == "differs", check.what
    assert check.evidence["by more than rounding"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_honest_server_is_never_accused(scores, noise) -> None:
    """Rounding makes texts differ, by as much as some servers' forwards do."""
    with planted(Planted(*scores, draws.honest, noise)) as url:
        found = certify_server(url, quick=True, seed=7)
    assert found.status == "consistent", found.as_json()
    assert found.bound == found.checks[0].bound
    parted = [check for check in found.checks if check.status == "numerics"]
    assert bool(parted) == bool(noise)
