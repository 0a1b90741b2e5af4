"""A known answer with another drafter has the rounds that it would have made."""

import json
from dataclasses import replace
from itertools import count

import pytest

from foreword import LLM, Recording, SamplingParams
from foreword.errors import InvalidRequest
from foreword.hindsight.playback import Known, emitted, play
from foreword.hindsight.whatif import candidates, what_if
from foreword.wanted import Abandoned, dropped_when

PROMPT = "Write a long list of animals."
FREE = ("ngram", "suffix", "lm", "tli", "slem")
"""Drafters that read the text alone: the target does not run."""
READING = ("eagle", "dspark", "medusa", "recycle", "lookahead", "quantized")
"""Drafters that read what the target reads."""


def recorded(
    llm: LLM, temperature: float, prompt: str = PROMPT, **more: object
) -> Recording:
    options = {"seed": 5, "max_tokens": 40, **more}
    params = SamplingParams(temperature=temperature, trace=True, **options)
    answer = llm.generate(llm.render([{"role": "user", "content": prompt}]), params)[0]
    return Recording.of(llm, params, answer)


def shape(rounds: tuple) -> list[tuple]:
    """What rounds drafted and accepted."""
    return [
        (
            tuple((node.token, node.parent) for node in one.draft),
            one.accepted,
            one.added.token,
        )
        for one in rounds
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [*FREE, *READING])
def test_rounds_are_those_of_a_real_run(llm, name, temperature):
    known = Known.of(recorded(llm, temperature))
    played = play(llm.session, known, name, 4)
    assert played.reread == (name in READING)
    assert emitted(played.rounds) == list(known.answer)
    with LLM(nodes=4) as other:  # its drafters have seen no other text
        real = recorded(other, temperature, method=name)
    assert emitted(real.rounds) == list(known.answer)
    assert sum(len(one.accepted) for one in played.rounds) > 0 or temperature
    assert shape(played.rounds) == shape(real.rounds)


@pytest.mark.parametrize("name", ["lm", "ngram", "eagle"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answer_that_ends_by_itself_takes_the_passes_of_a_real_run(
    llm, name, temperature
):
    """No drafter knows where it ends, so drafts reach beyond the end."""
    prompt, length = "What color is the sky?", 64
    known = Known.of(recorded(llm, temperature, prompt, max_tokens=length))
    assert len(known.answer) < length
    played = play(llm.session, known, name, 4)
    with LLM(nodes=4) as other:
        real = recorded(other, temperature, prompt, max_tokens=length, method=name)
    assert emitted(played.rounds) == emitted(real.rounds) == list(known.answer)
    ours, theirs = (shape(one.rounds) for one in (played, real))
    assert len(ours) == len(theirs)
    assert ours[:-1] == theirs[:-1]
    assert ours[-1][0] == theirs[-1][0]
    assert name == "ngram" or ours[-1][0]


@pytest.mark.parametrize("rule", ["match", "block"])
def test_rule_may_accept_beyond_the_end(llm, rule):
    known = Known.of(recorded(llm, 1.0, "What color is the sky?", max_tokens=64))
    played = play(llm.session, known, "lm", 8, rule)
    assert emitted(played.rounds) == list(known.answer)
    assert sum(len(one.accepted) for one in played.rounds) > 0


def test_playing_twice_gives_the_same_and_teaches_nothing(llm):
    known = Known.of(recorded(llm, 0.0))
    first, second = (play(llm.session, known, "suffix", 8) for _ in range(2))
    assert shape(first.rounds) == shape(second.rounds)


def test_filters_and_stop_strings_do_not_disturb(llm):
    recording = recorded(llm, 0.9, top_p=0.8, repetition_penalty=1.2, stop=("3.",))
    known = Known.of(recording)
    assert (known.params.top_p, known.params.stop) == (0.8, ())
    played = play(llm.session, known, "lm", 4)
    assert emitted(played.rounds) == list(known.answer)


def test_every_method_is_compared_and_plain_is_the_measure(llm):
    recording = recorded(llm, 0.0)
    names = candidates(llm.session)
    assert {*FREE, *READING} <= {*names}
    found = what_if(llm, recording, ["lm", "ngram"], (2, 4))
    by_name = {(one.method, one.nodes): one for one in found.outcomes}
    drafting = {(name, nodes) for name in ("lm", "ngram") for nodes in (2, 4)}
    assert {*by_name} == {("none", 0)} | drafting
    plain = by_name["none", 0]
    assert (plain.passes, plain.drafted, plain.over_plain) == (40, 0, 1.0)
    for one in found.outcomes:
        assert one.tokens == 40
        assert one.accepted == 40 - one.passes
        assert one.over_plain == pytest.approx(plain.seconds / one.seconds)
    assert found.recorded.passes == len(recording.rounds)
    # the same method and number of draft tokens takes as many passes
    assert found.recorded.passes == by_name["lm", 4].passes
    best = found.outcomes[0].seconds
    assert found.regret == pytest.approx(found.recorded.seconds / best - 1)
    times = [one.seconds for one in found.outcomes]
    assert times == sorted(times)
    assert by_name["lm", 4].passes < by_name["lm", 2].passes < 40
    values = json.loads(json.dumps(found.as_json(trees=True)))
    assert len(values["outcomes"][0]["rounds"]) == values["outcomes"][0]["passes"]


def test_what_cannot_be_replayed_is_said(llm):
    recording = recorded(llm, 0.0)
    found = what_if(llm, recording, ["cascade(suffix, lm)", "retrieval"], (4,))
    assert [one.method for one in found.outcomes] == ["none"]
    why = {one.method: one.why for one in found.left_out}
    assert "may remember this answer" in why["cascade(suffix, lm)"]
    assert "needs a datastore" in why["retrieval"]
    empty = replace(recording, rounds=())
    with pytest.raises(InvalidRequest, match="it holds no token"):
        what_if(llm, empty, ["lm"])
    beyond = replace(recording, prompt_tokens=(99_999,))
    with pytest.raises(InvalidRequest, match="tokens beyond the 8192"):
        what_if(llm, beyond, ["lm"])


def test_other_requests_go_on_meanwhile(llm):
    """A replay holds the engine for a round at a time, and changes no other text."""
    known = Known.of(recorded(llm, 0.0))
    stream = llm.stream("The river runs", SamplingParams(temperature=0, max_tokens=12))
    before = next(stream)
    play(llm.session, known, "eagle", 4)
    after = [token for delta in stream for token in delta.tokens]
    alone = llm.generate("The river runs", SamplingParams(temperature=0, max_tokens=12))
    assert [*before.tokens, *after] == alone[0].tokens


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_replay_ends_when_its_client_leaves_and_holds_nothing(llm, after):
    recording = recorded(llm, 0.0)
    asked = count()
    leaving = dropped_when(lambda: next(asked) >= after)
    with leaving, pytest.raises(Abandoned):
        what_if(llm, recording, ["eagle"], [2, 4])
    assert next(asked) <= after + 3
    assert llm.engine.idle
