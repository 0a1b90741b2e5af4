"""Idle methods look up and read on another's text, and gain what they seem to gain."""

import pytest

from foreword import SamplingParams
from foreword.budget.choice import Choice
from foreword.budget.estimates import DEPTHS, Guard
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.tree.drafter import ModelDrafter
from foreword.engine import reading
from foreword.engine.choosing import Chooser
from foreword.engine.looking import Lookup
from foreword.engine.reading import SAVED, Allowance
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, DraftTree
from running import DTYPE, Case, drafter, engine, finish, plain, prompts, target

LENGTH = 50


def requests(temperature: float) -> list[Case]:
    long = dict(max_tokens=LENGTH, ignore_eos=True, trace=True)
    return [
        Case(prompt, SamplingParams(temperature=temperature, seed=seed, **long))
        for seed, prompt in enumerate(prompts()[:4])
    ]


def observed(
    members: list, asked: list[Case], monkeypatch: pytest.MonkeyPatch
) -> tuple[Chooser, list[tuple[int, int, int]]]:
    """Return a chooser that decodes plainly, and its (member, depth, accepted)."""
    seen: list[tuple[int, int, int]] = []
    saw = Choice.saw

    def watched(choice, text, method, depth, accepted) -> None:
        seen.append((method, depth, accepted))
        saw(choice, text, method, depth, accepted)

    monkeypatch.setattr(Choice, "decide", lambda choice, *_: choice.plain)
    monkeypatch.setattr(Choice, "gain", lambda *_: -1.0)
    monkeypatch.setattr(Choice, "saw", watched)
    monkeypatch.setattr(Guard, "charge", lambda *_: None)
    monkeypatch.setattr(Allowance, "covers", lambda *_: True)
    monkeypatch.setattr(reading, "LARGEST", reading.BLOCK)
    loop = engine(target(DTYPE), AutoDrafter(members), DEPTHS)
    chooser = loop.default
    assert isinstance(chooser, Chooser)
    want = plain(target(DTYPE), asked)
    for one, right in zip(asked, want, strict=True):
        (answer,) = finish(loop, [one])
        assert answer.said == right.said
    assert loop.failed is None
    return chooser, seen


def test_lookups_are_compared_with_what_another_method_writes(monkeypatch):
    asked = requests(0.0)
    _, seen = observed([NgramDrafter()], asked, monkeypatch)
    alone = finish(engine(target(DTYPE), NgramDrafter(), DEPTHS), asked)
    stats = [answer.request.stats for answer in alone]
    drafts = sum(one.drafted_at[0] for one in stats)
    gained = sum(one.accepted for one in stats) / drafts
    assert gained > 0.2
    mean = sum(accepted for _, _, accepted in seen) / len(seen)
    assert mean == pytest.approx(gained, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "eagle"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_models_are_compared_with_what_another_method_writes(
    monkeypatch, name, temperature
):
    """A token would be drafted where a round that begins there accepts it."""
    asked = requests(temperature)
    agreed: dict[tuple[int, int], bool] = {}
    reread = ModelDrafter.reread

    def watched(model, request, noise):
        found = reread(model, request, noise)
        first = len(request.tokens) - len(found)
        for place, agrees in enumerate(found, first):
            agreed[request.seed, place] = agrees
        return found

    monkeypatch.setattr(ModelDrafter, "reread", watched)
    chooser, seen = observed([drafter(name, DTYPE)], asked, monkeypatch)
    assert len(seen) > 8
    (choice,) = chooser._choices._choices.values()
    assert 0.0 < choice.agreement[0].rates[0] < 1.0
    assert choice.prices[0].reading(16) > 0
    assert len(agreed) > 60
    own = finish(engine(target(DTYPE), drafter(name, DTYPE), 1), asked)
    compared = []
    for answer in own:
        place = answer.request.prompt
        for delta in answer.deltas:
            key = (answer.request.seed, place)
            place += len(delta.tokens)
            if key in agreed and delta.round.draft:
                compared.append((agreed[key], bool(delta.round.accepted)))
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
        request = asked.request(frozenset())
        request.tokens[:] = whole[:end]
        batch = Batch((request,), noise, context=target(DTYPE).context)
        agrees.append(model.propose(batch, [1]).trees[0].tokens == whole[end : end + 1])
        model.release(request)
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


def test_a_draft_is_followed_until_the_text_leaves_it():
    tree = DraftTree([5, 6, 7, 8], [-1, -1, 1, 2])
    draft = Lookup(tree, 3)
    assert not draft.follow([1, 2, 3])
    assert not draft.follow([1, 2, 3, 6, 7])
    assert draft.accepted == 2
    assert draft.follow([1, 2, 3, 6, 7, 9])
    assert draft.accepted == 2
    whole = Lookup(tree, 3)
    assert whole.follow([1, 2, 3, 6, 7, 8]), "nothing is left of it"
    assert whole.accepted == 3


def test_feedback_takes_a_share_of_the_time():
    allowance = Allowance(0.01)
    assert not allowance.covers(0.5)
    for _ in range(100):
        allowance.grant(1.0)
    assert allowance.covers(0.5)
    allowance.spend(1.0)
    assert not allowance.covers(0.1)
    for _ in range(10_000):
        allowance.grant(1.0)
    assert allowance.seconds == SAVED
