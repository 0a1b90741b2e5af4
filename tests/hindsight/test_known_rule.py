"""A known answer under rules with their own noise: as much is accepted as in a run."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from foreword import LLM, Recording, SamplingParams
from foreword.errors import InvalidRequest, ModelError
from foreword.hindsight.playback import Known, Played, emitted, play
from foreword.hindsight.whatif import what_if
from foreword.types import Round
from foreword.verify import RULES
from foreword_lab.certify.enumeration import over_uniforms
from foreword_lab.certify.worlds import World, along, drawn
from grids import slow_case

NAMES = [name for name in RULES.own if RULES[name].given_text]
TURN = "Write a long list of animals."
SEEDS = range(40)
SIGMAS = 2.5
"""Most standard errors between two means. Seeds are fixed, so the test cannot flake."""


def ratios(world: World, text: tuple[int, ...]) -> list[float]:
    """q/p of each token of a text."""
    return [
        float(world.drafter[depth][text[: depth + 1]])
        / float(world.target[depth][text[: depth + 1]])
        for depth in range(len(text))
    ]


def likely(world: World, text: tuple[int, ...]) -> float:
    """Probability that the target writes a text."""
    parts = [world.target[at][text[: at + 1]] for at in range(len(text))]
    return float(torch.stack(parts).prod()) if parts else 1.0


def test_rules_that_compare_distributions_know_how_far_a_text_is_accepted():
    assert {*NAMES} == {name for name in RULES.own if not RULES[name].shares_noise}


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_acceptance_given_the_text_is_the_rule_s(name, seed):
    """P(at least i accepted, text) = p(text) R_i(text) for texts of i + 1 tokens."""
    world, rule = World.random(seed, vocab=3, depth=3), RULES[name]
    draft, drafted = drawn(world)
    weights = along(world.target, draft).log()
    decided = over_uniforms(rule.verify, weights, draft) * drafted[:, None, None]
    assert rule.given_text is not None
    expected = [0.0] * (world.depth + 1)
    for depth in range(1, world.depth + 1):
        for text in product(range(world.vocab), repeat=depth + 1):
            written = 0.0
            for row, column in product(range(len(drafted)), range(depth, 4)):
                own = draft.tokens[row, : depth + 1].tolist()
                if own[:depth] != list(text[:depth]):
                    continue
                if column == depth:
                    written += float(decided[row, column, text[depth]])
                elif own == list(text):
                    written += float(decided[row, column].sum())
            reached = rule.given_text(ratios(world, text[:depth]))[depth - 1]
            assert written == pytest.approx(likely(world, text) * reached, abs=1e-8)
            expected[depth] += written
    whole = decided.sum(dim=(0, 2))
    for depth in range(1, world.depth + 1):
        assert expected[depth] == pytest.approx(float(whole[depth:].sum()), abs=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_ratios_give_probabilities(name):
    given_text = RULES[name].given_text
    assert given_text is not None
    reached = given_text([1e200, 1e200, 0.5, 0.0, 1e200])
    assert reached[:2] == [1.0, 1.0]
    assert reached[2] == (1.0 if name in ("block", "traversal") else 0.5)
    assert reached[3:] == [0.0, 0.0]


def recorded(llm: LLM, seed: int, temperature: float) -> Recording:
    params = SamplingParams(
        temperature=temperature, seed=seed, max_tokens=40, trace=True
    )
    answer = llm.generate(llm.render([{"role": "user", "content": TURN}]), params)[0]
    return Recording.of(llm, params, answer)


def counts(rounds: tuple[Round, ...]) -> list[int]:
    """Accepted draft tokens of the rounds that drafted and may accept them all."""
    # near the end, fewer are drafted
    return [len(one.accepted) for one in rounds if one.pieces][1:-3]


def mean_and_error(answers: list[list[int]]) -> tuple[float, float]:
    """Mean over rounds, and its standard error over answers."""
    sums = torch.tensor([[sum(one), len(one)] for one in answers if one]).double()
    mean = sums[:, 0].sum() / sums[:, 1].sum()
    rest = sums[:, 0] - mean * sums[:, 1]
    return float(mean), float(rest.pow(2).sum().sqrt() / sums[:, 1].sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"), [("rejection", "lm"), slow_case("block", "eagle")]
)
def test_as_many_are_accepted_as_in_real_runs(llm, name, method):
    played, real = [], []
    with LLM(nodes=4, rule=name, method=method) as other:
        for seed in SEEDS:
            known = Known.of(recorded(llm, seed, 0.7))
            again = play(llm.session, known, method, 4, name)
            assert again.reread
            assert emitted(again.rounds) == list(known.answer)
            played.append(counts(again.rounds))
            real.append(counts(recorded(other, 1000 + seed, 0.7).rounds))
    (mean, error), (truth, apart) = mean_and_error(played), mean_and_error(real)
    assert abs(mean - truth) < SIGMAS * (error**2 + apart**2) ** 0.5
    assert error < 0.1


def shape(rounds: tuple[Round, ...]) -> list[tuple]:
    """What rounds drafted, accepted and added."""
    return [
        ([node.token for node in one.draft], one.accepted, one.added.token)
        for one in rounds
    ]


@pytest.mark.parametrize("method", ["lm", "suffix", "eagle"])
def test_at_temperature_0_rounds_are_those_of_a_real_run(llm, method):
    known = Known.of(recorded(llm, 5, 0.0))
    with LLM(nodes=4, rule="block", method=method) as other:
        real = recorded(other, 5, 0.0)
    for name in NAMES:
        played = play(llm.session, known, method, 4, name)
        assert played.reread == (method == "eagle")
        assert not played.refused
        assert shape(played.rounds) == shape(real.rounds)


def test_chosen_draft_tokens_are_known_at_every_temperature(llm):
    """A lookup drafts as it would have, and is accepted as far as it has the text."""
    known = Known.of(recorded(llm, 5, 0.4))
    played = play(llm.session, known, "suffix", 4, "rejection")
    assert not (played.reread)
    assert not (played.refused)
    assert sum(len(one.draft) > len(one.accepted) for one in played.rounds)


def test_refused_tokens_that_are_not_known_are_only_counted(llm):
    found = what_if(
        llm, recorded(llm, 5, 0.7), ["lm"], (4,), rules=("match", "rejection", "block")
    )
    by_rule = {one.rule: one for one in found.outcomes if one.nodes}
    assert {*by_rule} == {"match", "rejection", "block"}
    assert by_rule["match"].refused == ()
    sampled = by_rule["rejection"]
    for one, refused in zip(sampled.rounds, sampled.refused, strict=True):
        assert len(one.draft) == len(one.accepted)
        assert 0 <= len(one.draft) + refused <= 4
    assert sampled.drafted == sampled.accepted + sum(sampled.refused)
    assert sampled.tokens == sampled.accepted + sampled.passes
    values = found.as_json(trees=True)["outcomes"]
    assert [one["rule"] for one in values] == [one.rule for one in found.outcomes]
    assert "refused" not in found.as_json()["outcomes"][0]


def test_the_number_of_a_round_is_the_same_each_time(llm):
    known = Known.of(recorded(llm, 5, 0.7))
    first, second = (play(llm.session, known, "lm", 4, "block") for _ in range(2))
    assert shape(first.rounds) == shape(second.rounds)


def test_an_answer_of_another_rule_is_replayed_under_rules_alone(llm):
    with LLM(nodes=4, rule="block") as other:
        recording = recorded(other, 5, 0.7)
    found = what_if(llm, recording, ["lm", "suffix"], (4,), rules=("match", "block"))
    kinds = {(one.method, one.rule) for one in found.outcomes}
    assert kinds >= {("lm", "block"), ("suffix", "block"), ("suffix", "match")}
    (left,) = found.left_out
    assert (left.method, left.rule) == ("lm", "match")
    assert "its noise is not known" in left.why
    assert found.recorded.rule == "block"


def test_another_text_of_the_target_is_noticed(llm):
    known = Known.of(recorded(llm, 5, 0.7))
    answer = [*known.answer]
    answer[20] = next(one for one in answer if one != answer[20])
    wrong = replace(known, answer=tuple(answer))
    assert isinstance(play(llm.session, known, "lm", 4, "block"), Played)
    with pytest.raises(ModelError, match="writes another text here"):
        play(llm.session, wrong, "lm", 4, "block")


def test_rules_without_a_formula_are_refused(llm):
    recording = recorded(llm, 5, 0.0)
    RULES["odd"] = replace(RULES["block"], name="odd", given_text=None)
    try:
        with pytest.raises(InvalidRequest, match="cannot replay under 'odd'"):
            what_if(llm, recording, ["lm"], rules=("odd",))
    finally:
        del RULES["odd"]
