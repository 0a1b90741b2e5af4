"""Our server passes, and each deliberately broken one is found, by the right check."""

from functools import partial

import pytest

import broken_servers
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote import same_text
from foreword_lab.certify.remote.ask import margin, prompt, request, scored, text_of
from foreword_lab.certify.remote.client import Broken, Server, Unreachable, Unsupported
from foreword_lab.certify.remote.first_words import LEAST, words_check
from foreword_lab.certify.remote.forms import call_check, schema_check
from foreword_lab.certify.remote.greedy import greedy_check
from foreword_lab.certify.remote.parameters import (
    FILTERS,
    bias_check,
    filter_check,
    length_check,
    stop_check,
)
from foreword_lab.certify.remote.run import certify_server, outcomes
from foreword_lab.certify.remote.sampled import Run, sampled_check
from foreword_lab.certify.remote.source import sources
from foreword_lab.certify.remote.texts import known
from foreword_lab.certify.report import Check
from serving import Running

ONCE = Clock.of(0.1, lambda _: None, quick=True)
SEEDS = (1, 2, 3)


def drawn(server: Server) -> Check:
    named = sources(server, 0, quick=True)
    return sampled_check(Run(server, named, 0), ONCE, 1.0)


def filtered(name: str, server: Server) -> Check:
    (source,) = sources(server, 0, quick=True)
    return filter_check(server, source, name, 0)


CHECKS = {
    "seed": lambda server: same_text.seed_check(server, "completions", SEEDS),
    "chat seed": lambda server: same_text.seed_check(server, "chat", SEEDS),
    "greedy beside": lambda server: same_text.beside_check(server, "completions", 0.0),
    "sampled beside": lambda server: same_text.beside_check(server, "chat", 1.0),
    "prefix": lambda server: same_text.prefix_check(server, "completions", 7),
    "drafting": lambda server: same_text.drafting_check(server, "completions", SEEDS),
    "tokens": drawn,
    "words": lambda server: words_check(server, "chat", ONCE, 1.0, 0),
    "listed": lambda server: same_text.logprobs_check(server, "chat", SEEDS),
    "stop": lambda server: stop_check(server, "completions"),
    "length": lambda server: length_check(server, "completions"),
    "bias": lambda server: bias_check(server, "chat", 0),
    **{name: partial(filtered, name) for name in FILTERS},
    "call": lambda server: call_check(server, ONCE),
    "JSON": lambda server: schema_check(server, ONCE),
}
FOUND = [
    (broken_servers.OtherTextTogether, "greedy beside"),
    (broken_servers.StalePrefix, "prefix"),
    (broken_servers.HalfTemperature, "tokens"),
    pytest.param(
        broken_servers.DraftsAtHalfTemperature, "words", marks=pytest.mark.slow
    ),
    (broken_servers.OtherTextListed, "listed"),
    (broken_servers.WritesStop, "stop"),
    (broken_servers.OneTooMany, "length"),
    (broken_servers.ForcesGreedyOnly, "bias"),
    (broken_servers.FiltersHalf, "top_k"),
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
    assert found.status == "differs", found
    assert found.evidence


@pytest.mark.sample(9)
@pytest.mark.parametrize("check", CHECKS)
def test_proxy_that_breaks_nothing_passes(server: Running, check: str) -> None:
    with broken_servers.broken(server.url, broken_servers.Fault()) as url:
        found = CHECKS[check](Server.at(url))
    assert found.status == "consistent", found


def test_numbers_that_are_no_probabilities_are_not_listed() -> None:
    top = [{"token": "a", "logprob": float("nan")}, {"token": "b", "logprob": -1.0}]
    content = [{"token": "a", "top_logprobs": top}]
    (token,) = scored({"choices": [{"logprobs": {"content": content}}]})
    assert token.top == ()


@pytest.mark.parametrize("name", FILTERS)
def test_filter_that_a_server_does_not_know_is_no_fault(server, name) -> None:
    with broken_servers.broken(server.url, broken_servers.Unfiltered()) as url:
        found = CHECKS[name](Server.at(url))
    assert found.status == "cannot say", found


@pytest.mark.parametrize("instead", [True, False])
def test_listed_tokens_are_known_before_one_is_drawn(instead: bool) -> None:
    """vLLM lists the drawn token first, instead of the last one or beside it."""
    vocabulary = [("a", -1.0), ("b", -2.0), *((name, -3.0) for name in "cdef")]
    seen = set()
    for drawn in vocabulary:
        likeliest = [one for one in vocabulary[:4] if one != drawn]
        answered = [drawn, *likeliest][: 4 if instead else 5]
        seen.add(known(tuple(sorted(answered, key=lambda one: -one[1])), 4))
    assert seen == {(("a", -1.0), ("b", -2.0))}


def test_drafted_tokens_without_logprobs_are_not_vouched_for(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.DraftsUnlisted()) as url:
        asked = Server.at(url)
        (source, *_) = sources(asked, 0, quick=True)
        for found in (drawn(asked), greedy_check(asked, source)):
            assert found.status == "cannot say", found
            assert found.evidence["without log-probabilities"] > 50


@pytest.mark.parametrize(
    ("fault", "is_known"),
    [(broken_servers.Fault, True), (broken_servers.DraftsUnlisted, False)],
)
def test_margin_is_that_of_the_token_where_texts_part(server, fault, is_known) -> None:
    query = request("completions", prompt("bread"), temperature=0, max_tokens=8)
    with broken_servers.broken(server.url, fault()) as url:
        text = text_of(Server.at(url).post(*query))
        found = margin(Server.at(url), query, (text, text[:8]))
    assert (found is not None) == is_known


@pytest.mark.parametrize("check", ["drafting", "words"])
def test_drafting_that_no_request_turns_off_is_no_fault(server, check) -> None:
    with (
        broken_servers.broken(server.url, broken_servers.DraftsAlways()) as url,
        pytest.raises(Unsupported, match="although drafting was turned off"),
    ):
        CHECKS[check](Server.at(url))


def test_seed_that_one_endpoint_ignores_is_a_fault(server: Running) -> None:
    """Ignored on completions and honoured on chat: promised, and not everywhere."""
    with broken_servers.broken(server.url, broken_servers.IgnoresSeed()) as url:
        checks = [CHECKS[name](Server.at(url)) for name in ("seed", "chat seed")]
    assert [one.status for one in checks] == ["cannot say", "consistent"]
    settled = same_text.settled(checks, consistent=True)
    assert [one.status for one in settled] == ["differs", "consistent"]


def test_sampled_text_that_parts_may_be_rounding_where_tokens_are_right() -> None:
    evidence = {same_text.SAMPLED: 1}
    check = Check("same text beside other requests", "numerics", "", evidence)
    greedy = Check("same text", "numerics", "", {same_text.SAMPLED: 0})
    for consistent, status in ((True, "numerics"), (False, "cannot say")):
        settled = same_text.settled([check, greedy], consistent=consistent)
        assert [one.status for one in settled] == [status, "numerics"]


@pytest.mark.slow
def test_first_words_are_compared_where_there_are_no_logprobs(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.NoLogprobs()) as url:
        found = certify_server(url, minutes=0.5)
    words = found.checks[0]
    assert words.evidence["pairs of words"] >= LEAST


@pytest.mark.slow
def test_our_server_is_consistent(server: Running) -> None:
    found = certify_server(f"{server.url}/v1/", minutes=0.5)
    assert {check.status for check in found.checks} == {"consistent"}, found.as_json()
    assert found.subject["model"] == "foreword-family"
    (tokens, *_) = found.checks
    temperatures = {one["request"]["temperature"] for one in tokens.evidence["samples"]}
    assert temperatures == {0.7, 1.0, 1.3}
    assert 0 < found.bound < 0.2


@pytest.mark.slow
def test_endpoint_that_a_server_lacks_is_no_fault(server: Running) -> None:
    class NoChat(broken_servers.Fault):
        def asked(self, path, body):
            return {"messages": 1} if path.endswith("chat/completions") else body

    with broken_servers.broken(server.url, NoChat()) as url:
        found = certify_server(url, minutes=0.3)
    by_name = {check.name: check for check in found.checks}
    assert found.status == "consistent"
    assert by_name["seeds: chat"].status == "cannot say"
    assert "422" in by_name["seeds: chat"].what or "400" in by_name["seeds: chat"].what


@pytest.mark.slow
def test_answer_without_a_choice_is_a_fault(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.Fails()) as url:
        with pytest.raises(Broken, match="has no choice"):
            CHECKS["seed"](Server.at(url))
        found = certify_server(url, quick=True)
    assert found.status == "differs"


def test_server_that_is_gone_is_an_error(server: Running) -> None:
    with broken_servers.broken(server.url, broken_servers.Fault()) as url:
        gone = url
    with pytest.raises(Unreachable, match="cannot reach"):
        Server.at(gone)


def test_what_was_found_is_kept_where_the_server_goes_away() -> None:
    def gone() -> Check:
        raise Unreachable("cannot reach the server")

    asked = [("first", lambda: Check("first", "differs", "")), ("gone", gone)]
    found = outcomes([*asked, ("never asked", gone)], ONCE)
    named = [(one.name, one.status, one.what) for one in found]
    assert named == [
        ("first", "differs", ""),
        ("gone", "cannot say", "cannot reach the server"),
    ]


def test_server_that_wants_a_key_is_an_error(server: Running) -> None:
    with broken_servers.broken(f"{server.url}/nothing", broken_servers.Fault()) as url:
        with pytest.raises(Unreachable, match="cannot find the model"):
            Server.at(url)
        assert Server.at(url, model="named").model == "named"
