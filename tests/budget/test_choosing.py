"""The engine chooses a method in each round: the text is plain decoding's."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product

import pytest

from drafters import Foresight, known
from foreword import LLM, SamplingParams, bundled
from foreword.budget import AdaptiveBudget, Costs, FixedBudget
from foreword.budget.choice import Choice
from foreword.budget.estimates import DEPTHS
from foreword.budget.kept import KeptStates
from foreword.draft import method, resolved
from foreword.draft.base import Drafter
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.none import NoDrafter
from foreword.engine import Engine
from foreword.engine.choosing import Chooser
from foreword.engine.reading import Allowance
from foreword.errors import InvalidRequest
from foreword.files import CachedValues
from foreword.model import measure
from running import DTYPE, Answer, Case, drafter, engine, finish, plain, prompts, target

LENGTH = 24


def requests(count: int = 5, **params: object) -> list[Case]:
    options = dict(max_tokens=LENGTH, ignore_eos=True) | params
    return [
        Case(prompt, SamplingParams(seed=seed, **options))
        for seed, prompt in enumerate(prompts()[:count])
    ]


def mixed() -> list[Case]:
    """Requests that are sampled in different ways."""
    settings = product((0.0, 0.7), (1.0, 0.9))
    long = dict(seed=7, max_tokens=LENGTH, ignore_eos=True)
    return [
        Case(prompt, SamplingParams(temperature=heat, top_p=share, **long))
        for (heat, share), prompt in zip(settings, prompts(), strict=False)
    ]


@pytest.fixture
def turning(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Another method in every round; what is looked up is used in every other one."""
    turns, used, looks = count(), Counter[int](), count()

    def turn(choice: Choice, texts: object, unread: object, out: list[int]) -> int:
        models = [one for one in range(choice.plain + 1) if one not in out]
        used[method := models[next(turns) % len(models)]] += 1
        choice.current = method
        return method

    def gain(choice: Choice, *_: object, **__: object) -> float:
        return next(looks) % 2

    monkeypatch.setattr(Choice, "settled", False)
    monkeypatch.setattr(Choice, "decide", turn)
    monkeypatch.setattr(Choice, "gain", gain)
    monkeypatch.setattr(Allowance, "covers", lambda *_: True)
    return used


def members_of(dtype: str) -> AutoDrafter:
    lm = drafter("lm", dtype)
    joint = AutoDrafter([lm, drafter("suffix", dtype), drafter("eagle", dtype)])
    joint.names = ("lm", "suffix", "eagle")
    return joint


@pytest.mark.parametrize("budget", [4, "adaptive"])
@pytest.mark.parametrize("slots", [1, 5])
def test_text_does_not_depend_on_the_method_of_a_round(turning, budget, slots):
    costs = {1: 1.0, 64: 1.0}
    own = AdaptiveBudget(costs) if budget == "adaptive" else FixedBudget(4)
    asked = mixed()
    want = plain(target(DTYPE), asked)
    loop = engine(target(DTYPE), members_of(DTYPE), own, slots=slots, chunk=16)
    got = finish(loop, asked)
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert loop.failed is None
    assert all(turning[number] for number in (0, 2, 3))
    assert sum(answer.request.stats.accepted for answer in got) > LENGTH
    if slots == 1:
        wrote = Counter[str]()
        for answer in got:
            wrote.update(answer.request.stats.by_method)
        assert set(wrote) == {"lm", "suffix", "eagle", "none"}


def test_every_model_drafts_with_a_budget_of_its_own():
    asked = requests(2, temperature=0.0)
    want = known(plain(target(DTYPE), asked))
    loop = engine(
        target(DTYPE),
        AutoDrafter([Foresight(want), Foresight(want, spoilt=1.0), NgramDrafter()]),
        AdaptiveBudget({1: 1.0, 64: 1.0}),
    )
    chooser = loop.default
    assert isinstance(chooser, Chooser)
    first, second, lookup = (member.budget for member in chooser.members)
    assert first is not second
    assert first.costs is second.costs is loop.budget.costs
    assert isinstance(lookup, FixedBudget), "what it finds has its price"
    finish(loop, asked)
    assert not chooser._entries


def test_a_request_that_ends_is_released_by_every_member(turning):
    budget = AdaptiveBudget({1: 1.0, 64: 1.0})
    lm = drafter("lm", DTYPE)
    loop = engine(target(DTYPE), AutoDrafter([lm, NgramDrafter()]), budget)
    finish(loop, requests(3))
    chooser = loop.default
    assert isinstance(chooser, Chooser)
    assert turning[0]
    assert not lm._memories
    assert not any(member.found for member in chooser.members)


@pytest.mark.parametrize("together", [False, True])
def test_rounds_of_plain_decoding_correct_the_costs(monkeypatch, together):
    monkeypatch.setattr(Choice, "decide", lambda choice, *_: choice.plain)
    budget = AdaptiveBudget({1: 100.0, 64: 200.0})
    loop = engine(target(DTYPE), AutoDrafter([drafter("lm", DTYPE)]), budget)
    asked = requests(3)
    if together:
        finish(loop, asked)
    else:
        assert len([*each(loop, asked)]) == 3
    assert 0 < budget.costs.seconds(1) < 50.0


def test_a_policy_without_costs_gets_measured_ones():
    loop = engine(target(DTYPE), drafter("auto", DTYPE), 4)
    chooser = loop.default
    assert isinstance(chooser, Chooser)
    expected = Costs(measure(target(DTYPE))).seconds(1)
    assert chooser.prices.plain_seconds(1) == expected > 0


class Broken(Foresight):
    def propose(self, batch, nodes):
        raise OSError("no such file")


@pytest.mark.parametrize("together", [False, True])
def test_other_methods_go_on_where_one_fails(together):
    asked = requests(3)
    want = plain(target(DTYPE), asked)
    members = [Broken(known(want)), Foresight(known(want))]
    loop = engine(target(DTYPE), AutoDrafter(members), 4)
    with pytest.warns(RuntimeWarning, match="no such file"):
        got = finish(loop, asked) if together else [*each(loop, asked)]
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert all(answer.request.undrafted is None for answer in got)
    assert all(answer.request.stats.accepted > LENGTH / 2 for answer in got)
    assert loop.failed is not None
    assert "no such file" in loop.failed
    chooser = loop.default
    assert isinstance(chooser, Chooser)
    assert not any(member.failures.off for member in chooser.members)


def each(loop: Engine, asked: list[Case]) -> Iterator[Answer]:
    """Answer requests one after the other."""
    for one in asked:
        yield from finish(loop, [one])


def test_drafting_is_off_where_every_method_fails():
    asked = requests(3)
    want = plain(target(DTYPE), asked)
    members = [Broken(known(want)), Broken(known(want))]
    loop = engine(target(DTYPE), AutoDrafter(members), 4)
    with pytest.warns(RuntimeWarning, match="no such file"):
        got = finish(loop, asked)
    assert [answer.said for answer in got] == [answer.said for answer in want]
    for answer in got:
        assert "no such file" in (answer.request.undrafted or "")


LOST = NoDrafter("its files are gone")


@pytest.mark.parametrize("others", [[], [LOST]], ids=["alone", "beside a lost one"])
def test_one_method_drafts_alone_or_beside_one_without_its_model(others):
    asked = requests(3)
    want = plain(target(DTYPE), asked)
    members: list[Drafter] = [*others, Foresight(known(want))]
    loop = engine(target(DTYPE), AutoDrafter(members), 4)
    got = finish(loop, asked)
    assert [answer.said for answer in got] == [answer.said for answer in want]
    assert sum(answer.request.stats.accepted for answer in got) > LENGTH


def test_auto_names_the_methods_that_suit_the_source():
    assert resolved("lm", None) == "lm"
    assert resolved("auto", None) == "auto(ngram, suffix)"
    name = resolved("auto", bundled.draft())
    assert name == "auto(lm, ngram, suffix)"
    assert resolved("auto", bundled.head("eagle")) == "auto(eagle, ngram, suffix)"
    both = {"eagle": bundled.head("eagle"), "lm": bundled.draft()}
    assert resolved("auto", both).startswith("auto(eagle, lm, ngram")
    method(resolved("auto", both))


def test_a_request_chooses_with_the_same_text():
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    asked = ["The river runs through the town.", "Once upon a time"]
    with LLM(method="none") as llm:
        want = [one.text for one in llm.generate(asked, params)]
    with LLM(method="ngram") as llm:
        by_name = replace(params, method="auto")
        got = llm.generate(asked, by_name)
        assert [one.text for one in got] == want
        assert sum(one.stats.accepted for one in got) > 0


def test_auto_of_no_method_is_refused():
    with pytest.raises(InvalidRequest, match="join no methods"):
        LLM(method="auto()")


def test_what_is_known_is_kept_for_the_next_process(tmp_path, monkeypatch):
    """A method that lost in an earlier process is not used in the first rounds."""
    monkeypatch.setattr(KeptStates, "folder", tmp_path)
    asked = "The river runs through the town."
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(method="auto(lm)", nodes=4) as llm:
        (answer,) = llm.generate([asked], params)
        assert answer.stats.by_method["lm"] > 0
        kept = llm.engine.default._choices._states
    (kind,) = kept._states
    assert kind == "match, 4 draft tokens, greedy, batches below 2"
    (name,) = kept._states[kind]
    kept._states.clear()
    kept.record(kind, name, [3.0, 1.0, *[0.01] * DEPTHS])
    kept.save()
    (file,) = tmp_path.iterdir()
    assert "lm from" in file.read_text()
    monkeypatch.setattr(KeptStates, "opened", {})
    with LLM(method="auto(lm)", nodes=4) as llm:
        (answer,) = llm.generate([asked], params)
        assert answer.stats.by_method["none"] > 12
        (choice,) = llm.engine.default._choices._choices.values()
        assert choice.prices[0].spent(1) > 2


def test_damaged_speeds_are_as_good_as_none(tmp_path):
    values = CachedValues("methods", {"machine": 1}, tmp_path)
    key = '"key": {"machine": 1}'
    for damaged in (
        f'{{{key}, "greedy": {{"lm": "fast"}}}}',
        f'{{{key}, "greedy": {{"lm": [-1.0, 2.0]}}}}',
        "[]",
        "{",
    ):
        values.file.write_text(damaged)
        assert KeptStates(values).values("greedy", "lm") == []
    kept = KeptStates(values)
    kept.record("greedy", "lm", [float("nan")])
    kept.save()
    assert values.file.read_text() == "{"
    kept.record("greedy", "lm", [2.0])
    kept.save()
    assert KeptStates(values).values("greedy", "lm") == [2.0]
    kept.record("greedy", "lm", [4.0])
    assert kept.values("greedy", "lm") == [3.0]
    for _ in range(100):
        kept.record("greedy", "lm", [1.5])
    kept.save()
    assert KeptStates(values).values("greedy", "lm") == pytest.approx([1.5], rel=0.02)
    other = CachedValues("methods", {"machine": 2}, tmp_path)
    assert KeptStates(other).values("greedy", "lm") == []
