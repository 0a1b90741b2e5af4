"""Arms that are not in use are scored on the text that another one writes, and their
scores are what they gain themselves.
"""

import pytest

from foreword import SamplingParams
from foreword.budget.choice import Choice
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.tree.drafter import ModelDrafter
from foreword.engine.arms import Arms
from foreword.engine.arms.scores import NODES, ArmScores, rounds
from foreword.engine.arms.text import Kind
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch
from running import DTYPE, Case, drafter, engine, finish, plain, prompts, target

LENGTH = 50


def requests(temperature: float) -> list[Case]:
    return [
        Case(
            prompt,
            SamplingParams(
                temperature=temperature,
                seed=seed,
                max_tokens=LENGTH,
                ignore_eos=True,
                trace=True,
            ),
        )
        for seed, prompt in enumerate(prompts()[:4])
    ]


def scored(members: list, asked: list[Case], monkeypatch: pytest.MonkeyPatch) -> Arms:
    """Return arms that were scored in every round of plain decoding."""
    monkeypatch.setattr(Choice, "decide", lambda choice, *_: choice.plain)
    monkeypatch.setattr(ArmScores, "save_up", lambda *_: None)
    new_choice = Arms._new_choice

    def informed(arms: Arms, kind: Kind) -> Choice:
        choice = new_choice(arms, kind)
        choice.drafting[0].add(1.0, 0.1)  # what its draft tokens cost is known
        return choice

    monkeypatch.setattr(Arms, "_new_choice", informed)
    loop = engine(target(DTYPE), AutoDrafter(members), NODES)
    arms = loop.default
    assert isinstance(arms, Arms)
    want = plain(target(DTYPE), asked)
    arms._scores.spare = 1e9  # seconds: score whenever there is something to score
    for one, right in zip(asked, want, strict=True):
        (answer,) = finish(loop, [one])
        assert answer.said == right.said
    assert loop.failed is None
    return arms


@pytest.mark.slow
def test_lookups_are_scored_on_what_another_arm_writes(monkeypatch):
    asked = requests(0.0)
    arms = scored([drafter("lm", DTYPE), NgramDrafter()], asked, monkeypatch)
    found = [choice.scored[1] for choice in arms._choices.values()]
    tokens = sum(one.tokens for one in found)
    assert not any(choice.scored[0].rounds for choice in arms._choices.values())
    alone = finish(engine(target(DTYPE), NgramDrafter(), NODES), asked)
    stats = [answer.request.stats for answer in alone]
    gained = sum(one.accepted for one in stats) / sum(one.rounds for one in stats)
    assert gained > 0.2
    seen = sum(one.rounds for one in found)
    assert tokens / seen - 1 == pytest.approx(gained, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "eagle"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draft_models_are_scored_on_what_another_arm_writes(
    monkeypatch, name, temperature
):
    """A token counts as one that it would have drafted where it is accepted in a round
    of its own that begins there.
    """
    asked = requests(temperature)
    agreed: dict[tuple[int, int], bool] = {}
    reread = ModelDrafter.reread

    def watched(model, sequence, noise):
        found = reread(model, sequence, noise)
        first = len(sequence.tokens) - len(found)
        for place, agrees in enumerate(found, first):
            agreed[sequence.seed, place] = agrees
        return found

    monkeypatch.setattr(ModelDrafter, "reread", watched)
    monkeypatch.setattr(Choice, "pace", lambda *_: 1.0)  # no model is far behind
    arms = scored([drafter(name, DTYPE), NgramDrafter()], asked, monkeypatch)
    (choice,) = arms._choices.values()
    assert choice.reread[0].rounds > 4
    own = finish(engine(target(DTYPE), drafter(name, DTYPE), 1), asked)
    compared = []
    for answer in own:
        place = answer.request.prompt
        for delta in answer.deltas:
            seen = (answer.request.seed, place)
            place += len(delta.tokens)
            if seen in agreed and delta.round.draft:
                compared.append((agreed[seen], bool(delta.round.accepted)))
    assert len(compared) > 40
    assert all(agrees == accepted for agrees, accepted in compared)
    assert {True, False} == {accepted for _, accepted in compared}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_reading_again_names_the_tokens_that_would_be_drafted(temperature):
    (asked,) = requests(temperature)[:1]
    (answer,) = plain(target(DTYPE), [asked])
    whole = answer.request.tokens[:-8]  # room to draft after it
    noise = NoiseStreams(target(DTYPE).vocab, shared=True)
    first = asked.request(frozenset())
    agrees = []
    for end in range(first.prompt, len(whole)):
        model = drafter("lm", DTYPE)
        sequence = asked.request(frozenset())
        sequence.tokens[:] = whole[:end]
        batch = Batch((sequence,), noise, context=target(DTYPE).context)
        agrees.append(model.propose(batch, [1]).trees[0].tokens == whole[end : end + 1])
        model.release(sequence)
    model = drafter("lm", DTYPE)
    first.tokens[:] = whole
    again = model.reread(first, noise)
    assert again[-len(agrees) :] == agrees
    assert True in agrees
    assert False in agrees
    # and the model is ready to draft
    batch = Batch((first,), noise, context=target(DTYPE).context)
    assert model.propose(batch, [4]).nodes
    assert model.reread(first, noise) == []


def test_rounds_of_chains():
    assert rounds([True] * 20, nodes=8) == [9, 9]
    assert rounds([False, True, False, True], nodes=8) == [1, 2]
    assert rounds([], nodes=8) == []


@pytest.mark.slow
def test_a_draft_model_far_behind_the_leader_is_not_read(monkeypatch):
    asked = requests(0.0)
    monkeypatch.setattr(Choice, "known", lambda *_: True)
    monkeypatch.setattr(Choice, "pace", lambda _, arm: (0.5, 1.0, 1.0)[arm])
    arms = scored([drafter("lm", DTYPE), NgramDrafter()], asked, monkeypatch)
    (choice,) = arms._choices.values()
    assert choice.reread[0].rounds == 0
    assert choice.scored[1].rounds > 0
