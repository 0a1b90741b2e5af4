"""Our server passes, and each deliberately broken one is found, by the right check."""

import pytest

import broken_servers
from foreword.errors import InvalidRequest, ModelError
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote import same_text
from foreword_lab.certify.remote.client import Broken, Server
from foreword_lab.certify.remote.run import (
    ServerOptions,
    call_check,
    certify_server,
    schema_check,
)
from foreword_lab.certify.remote.temperature import WORDS, temperature_check
from serving import Running

ONCE = Clock.of(0.1, lambda _: None, quick=True)
SEEDS = (1, 2, 3)
CHECKS = {
    "seed": lambda server: same_text.seed_check(server, "completions", SEEDS),
    "chat seed": lambda server: same_text.seed_check(server, "chat", SEEDS),
    "greedy beside": lambda server: same_text.beside_check(server, "completions", 0.0),
    "sampled beside": lambda server: same_text.beside_check(server, "chat", 1.0),
    "prefix": lambda server: same_text.prefix_check(server, "completions", 7),
    "drafting": lambda server: same_text.drafting_check(server, "completions", SEEDS),
    "temperature": lambda server: temperature_check(
        server, "chat", 1.0, seed=0, clock=ONCE
    ),
    "call": lambda server: call_check(server, ONCE),
    "JSON": lambda server: schema_check(server, ONCE),
}
FOUND = [
    (broken_servers.IgnoresSeed, "seed"),
    (broken_servers.OtherTextTogether, "greedy beside"),
    pytest.param(
        broken_servers.OtherTextTogether, "sampled beside", marks=pytest.mark.slow
    ),
    (broken_servers.StalePrefix, "prefix"),
    (broken_servers.HalfTemperature, "temperature"),
    pytest.param(
        broken_servers.DraftsAtHalfTemperature, "temperature", marks=pytest.mark.slow
    ),
    (broken_servers.CallAsContent, "call"),
    (broken_servers.CutSaysStop, "call"),
    (broken_servers.CutSaysStop, "JSON"),
    (broken_servers.DraftsChangeText, "drafting"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("fault", "check"), FOUND)
def test_broken_server_is_found(server: Running, fault, check) -> None:
    with broken_servers.broken(server.url, fault()) as url:
        found = CHECKS[check](Server.at(url))
    assert found.status == "failed", found
    assert found.evidence


@pytest.mark.sample(9)
@pytest.mark.parametrize("check", CHECKS)
def test_proxy_that_breaks_nothing_passes(server: Running, check: str) -> None:
    with broken_servers.broken(server.url, broken_servers.Fault()) as url:
        found = CHECKS[check](Server.at(url))
    assert found.status == "passed", found


def test_fault_leaves_the_other_checks_alone(server: Running) -> None:
    """A seed that is ignored on completions is honoured on chat."""
    with broken_servers.broken(server.url, broken_servers.IgnoresSeed()) as url:
        assert CHECKS["chat seed"](Server.at(url)).status == "passed"


@pytest.mark.slow
def test_first_words_are_compared_where_there_are_no_logprobs(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.NoLogprobs()) as url:
        found = CHECKS["temperature"](Server.at(url))
    assert found.status == "passed", found
    assert found.evidence["samples"] == 2 * WORDS


@pytest.mark.slow
def test_our_server_passes_at_every_temperature(server: Running) -> None:
    found = certify_server(ServerOptions(url=server.url, minutes=0.5, seed=1000))
    assert {check.status for check in found.checks} == {"passed"}, found.as_json()
    assert sum("temperature 1.3" in check.name for check in found.checks) == 1


@pytest.mark.slow
def test_our_server_passes(server: Running) -> None:
    options = ServerOptions(url=f"{server.url}/v1/", quick=True)
    found = certify_server(options)
    assert {check.status for check in found.checks} == {"passed"}, found.as_json()
    assert found.subject["model"] == "foreword-family"


@pytest.mark.slow
def test_server_without_an_endpoint_is_not_supported(server: Running) -> None:
    """A path that the server does not have is not a fault."""

    class NoChat(broken_servers.Fault):
        def asked(self, path, body):
            return {"messages": 1} if path.endswith("chat/completions") else body

    with broken_servers.broken(server.url, NoChat()) as url:
        found = certify_server(ServerOptions(url=url, quick=True))
    by_kind = {check.name: check for check in found.checks}
    assert found.passed
    assert by_kind["seeds: chat"].status == "not supported"
    assert "422" in by_kind["seeds: chat"].what or "400" in by_kind["seeds: chat"].what


@pytest.mark.slow
def test_answer_without_a_choice_is_a_fault(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.Fails()) as url:
        with pytest.raises(Broken, match="has no choice"):
            CHECKS["seed"](Server.at(url))
        found = certify_server(ServerOptions(url=url, quick=True))
    assert not found.passed


def test_server_that_is_gone_is_an_error(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.Fault()) as url:
        gone = url
    with pytest.raises(ModelError, match="cannot reach"):
        Server.at(gone)


def test_server_that_wants_a_key_is_an_error(server: Running) -> None:
    with broken_servers.broken(f"{server.url}/nothing", broken_servers.Fault()) as url:
        with pytest.raises(InvalidRequest, match="cannot find the model"):
            Server.at(url)
        assert Server.at(url, model="named").model == "named"
