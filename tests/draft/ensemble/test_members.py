"""Drafters made of drafters: the members they load, ask, and make a tree of."""

from collections.abc import Sequence
from itertools import count

import pytest
import torch

from drafters import paths
from foreword.draft import MethodSpec, method
from foreword.draft.base import Drafter, chosen
from foreword.draft.ensemble.cascade import EAGER, CascadeDrafter, DecayedMean
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.lookup.suffix import SuffixDrafter
from foreword.errors import InvalidRequest, UnknownMethod
from foreword.sampling.streams import NoiseStreams
from foreword.types import (
    Batch,
    Draft,
    DraftTree,
    Request,
    SamplingParams,
    Scores,
    Verdict,
)
from running import (
    DTYPE,
    Case,
    draft,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
    tokenizer,
)

_ids = count(2_000_000)


class Says(Drafter):
    """Always the same tree, or chain without probabilities."""

    def __init__(
        self, *draft_tokens: tuple[int, int, float], silent: bool = False
    ) -> None:
        self.tree, self.silent, self.asked = DraftTree(), silent, 0
        for token, parent, probability in draft_tokens:
            self.tree.add(token, parent, probability)

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        self.asked += sum(n > 0 for n in nodes)
        trees = [self.tree if n else DraftTree() for n in nodes]
        return chosen([tree.tokens for tree in trees]) if self.silent else Draft(trees)


def one(heat: float = 0) -> Request:
    params = SamplingParams(temperature=heat, max_tokens=64)
    return Request(next(_ids), [5] * 3, 1, params, seed=0)


def propose(
    drafter: Drafter, *requests: Request, trees: bool = True, **known: float
) -> Draft:
    batch = Batch(requests, NoiseStreams(100, shared=True), trees, **known)
    return drafter.propose(batch, [8] * len(requests))


def test_member_without_probabilities_counts_by_acceptance():
    mute = Says((1, -1, 0.0), (2, 0, 0.0), silent=True)
    both, request = CascadeDrafter([mute, Says()]), one()
    for turn in range(200):
        propose(both, request)
        said = [1, 9] if turn % 2 else [1, 2, 7]
        both.update(request, both._trees.pop(request.id), said)
    expected = pytest.approx({(1,): 1.0, (1, 2): 0.5}, abs=0.05)
    assert paths(propose(both, request)) == expected


def test_cascade_asks_next_only_where_first_is_not_sure():
    cheap, dear = Says((1, -1, 0.9), (2, 0, 0.8)), Says((3, -1, 0.9), (4, 0, 0.5))
    sure = CascadeDrafter([cheap, dear])
    for _ in range(30):  # much is hoped of it before it was asked
        assert paths(propose(sure, one())) == pytest.approx({(1,): 0.9, (1, 2): 0.8})
    assert dear.asked < 10
    asked = dear.asked
    unsure = CascadeDrafter([Says((1, -1, 0.2)), dear])
    for _ in range(30):
        assert paths(propose(unsure, one())) == pytest.approx({(3,): 0.9, (3, 4): 0.5})
    assert dear.asked == asked + 30
    wide = Says((1, -1, 0.1), (2, -1, 0.05))
    both = CascadeDrafter([Says((1, -1, 0.2)), wide])
    assert propose(both, one(), trees=False).chain


def test_slow_member_runs_rarely():
    dear = Says((3, -1, 0.9), (4, 0, 0.5))
    both = CascadeDrafter([Says((1, -1, 0.2)), dear])
    propose(both, one(), pace=1.0)
    assert dear.asked == 1, "nothing knew what it takes"
    both._took[1] = 10.0
    for _ in range(5):
        assert paths(propose(both, one(), pace=1.0)) == pytest.approx({(1,): 0.2})
    assert dear.asked == 1
    propose(both, one(), pace=0.01)
    assert dear.asked == 2, "where text comes slowly there is time"
    both._took[1] = 5.0
    both.rest(10_000.0)
    assert both._spare == 20.0, "a share of the time is kept for it, but not for ever"
    propose(both, one(), pace=1.0)
    assert dear.asked == 3
    assert both._tried == 0, "that try is over"
    assert both._spare < 20.0, "and paid for"
    both._took[1], both._spare = 5.0, 7.0
    propose(both, one(), pace=1.0)
    # it is expected to add less than 5 tokens: more than its time must be saved up
    assert dear.asked == 3
    propose(both, one())
    assert dear.asked == 4, "nothing looks at the time"


def test_member_without_expected_gain_is_tried_again():
    """Texts change, and nothing would notice."""
    silent = Says()
    both = CascadeDrafter([Says((1, -1, 0.9), (2, 0, 0.8)), silent])
    for _ in range(300):
        propose(both, one())
    asked = silent.asked
    both._took[1] = 1.0
    both.rest(3.9 / 0.02)
    propose(both, one(), pace=1.0)
    assert silent.asked == asked
    both.rest(0.2 / 0.02)
    propose(both, one(), pace=1.0)
    assert silent.asked == asked + 1, "when four times its time was saved"


def test_prefill_time_of_a_member_is_ignored():
    both, request = CascadeDrafter([Says((1, -1, 0.2)), Says((3, -1, 0.9))]), one()
    propose(both, request)
    assert both._took == [0.0, 0.0]
    both.rest(1.0)
    propose(both, request)
    assert min(both._took) > 0
    both._took = [0.0, 0.0]
    both.rest(1.0)
    both.rest(1.0)
    propose(both, request)
    # it was not asked in the last round, and has that to catch up with
    assert both._took == [0.0, 0.0]
    both._took = [9.0, 9.0]
    both.rest(1.0)
    both.rest(1.0)
    propose(both, request)
    assert max(both._took) < 9, "but it takes no longer than that with it"


def test_a_part_must_earn_its_time_for_all_texts_together():
    dear = Says((3, -1, 0.9), (4, 0, 0.8))
    both = CascadeDrafter([Says((1, -1, 0.2)), dear])
    for _ in range(100):
        propose(both, one())  # it promises 1.7, which is 1.5 more
    both._took[1] = 2.0
    asked = dear.asked
    propose(both, one(), one(), pace=0.7)
    # 3 draft tokens that come true take 2.86 seconds to write
    assert dear.asked == asked + 2
    both._took[1] = 2.0
    propose(both, one(), one(), pace=0.9)
    assert dear.asked == asked + 2


def test_expensive_scoring_leaves_no_expected_gain():
    """Three of 0.5 promise more than one of 0.9, unless scoring is dear."""
    dear = Says((9, -1, 0.9))
    both = CascadeDrafter([Says(*((token, -1, 0.5) for token in range(1, 4))), dear])
    for draft_tokens in (1, 5, 2, 9):
        both._scoring.learn(draft_tokens, 1.0 + 0.5 * draft_tokens)
    # 3 of 0.38 and one of 0.78; nothing and 0.4
    assert len(propose(both, one(), pace=0.5).trees[0]) == 3
    assert paths(propose(both, one(), pace=2.0)) == pytest.approx({(9,): 0.9})


def test_scoring_cost_is_learnt_in_pure_rounds():
    both, new, running = CascadeDrafter([Says((1, -1, 0.5)), Says()]), one(), one()
    running.rounds = 1
    for request, scored in ((new, None), (running, 1)):
        draft = propose(both, request)
        batch = Batch((request,), NoiseStreams(100, shared=True))
        scores = Scores((torch.zeros(2, 100),))
        both.observe(batch, draft, Verdict([[]], [7], 0), scores)
        assert both._scored == scored
    both._spent = 0.25
    both.rest(1.0)
    assert (both._scoring.tokens, both._scoring.seconds) == (1, 0.75)
    both.rest(1.0)
    assert both._scoring.seconds == 0.75, "nothing was drafted in that round"


def test_each_member_gets_its_own_floor():
    """A draft token that costs a forward must be likelier than one looked up."""
    told = []

    class Told(Says):
        def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
            told.append(batch.floor)
            return super().propose(batch, nodes)

    both = CascadeDrafter([Told((1, -1, 0.5)), Told((2, -1, 0.5))])
    for draft_tokens in (1, 5, 2, 9):
        both._scoring.learn(draft_tokens, 1.0 + 0.02 * draft_tokens)
        both._drafting_costs[1].learn(draft_tokens, 0.5 + 0.1 * draft_tokens)
    propose(both, one(), pace=2.0, floor=0.9)
    assert told == pytest.approx([0.02, 0.22])


def test_overconfident_member_runs_less():
    boasts = Says((3, -1, 0.9), (4, 0, 0.8))
    both, request = CascadeDrafter([Says((1, -1, 0.2)), boasts]), one()
    for said in ([7],) * 200:
        propose(both, request)
        both.update(request, both._trees.pop(request.id), said)
    asked, both._took[1] = boasts.asked, 1.0
    propose(both, request, pace=0.5)
    # 1.7 draft tokens, of which a fifth at most is believed
    assert boasts.asked == asked
    drawn = one(heat=1)
    propose(both, drawn, pace=0.5)
    assert boasts.asked == asked + 1, "of other texts nothing was learnt"
    for _ in range(200):
        propose(both, drawn)
        both.update(drawn, both._trees.pop(drawn.id), [7])
    asked, both._took[1] = boasts.asked, 1.0
    propose(both, drawn, pace=0.5)
    assert boasts.asked == asked


def test_prior_gain_gives_way_to_measurements():
    hope = DecayedMean()
    assert hope.tokens() == EAGER
    for _ in range(3):
        hope.learn(1.0)
    assert 1 < hope.tokens() < 2
    for _ in range(100):
        hope.learn(3.0)
    assert hope.tokens() == pytest.approx(3.0, abs=0.05)


def test_a_recipe_is_read_from_its_name():
    recipe = method(" cascade( ngram , cascade(suffix,lm) ) ")
    assert isinstance(recipe, MethodSpec)
    assert recipe.kind is CascadeDrafter
    assert [name for name, _ in recipe.parts] == ["ngram", "cascade(suffix, lm)"]
    assert recipe.about.needs
    made = recipe.load(draft(DTYPE), target(DTYPE), tokenizer())
    assert isinstance(made, CascadeDrafter)
    assert [type(part) for part in made.members] == [NgramDrafter, CascadeDrafter]
    assert isinstance(made.members[1], CascadeDrafter)
    kinds = [type(part) for part in made.members[1].members]
    assert kinds == [SuffixDrafter, LanguageModelDrafter]
    beside = (target(DTYPE), tokenizer())
    named = method("cascade(suffix,lm)").load({"lm": draft(DTYPE)}, *beside)
    assert named.members[1].model is draft(DTYPE)
    assert method("cascade(ngram,suffix)").load(None, *beside).members
    assert [name for name, _ in method("cascade").parts] == ["suffix", "lm"]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("cascade(ngram", InvalidRequest, "cannot read the method"),
        ("ngram(lm)", InvalidRequest, "joins no other"),
        ("cascade(ngram,sufix)", UnknownMethod, "Did you mean 'suffix'"),
        ("cascad(ngram,suffix)", UnknownMethod, "Did you mean 'cascade'"),
        ("", InvalidRequest, "it is not a name"),
    ],
)
def test_a_name_that_cannot_be_read_says_why(name, error, said):
    with pytest.raises(error, match=said):
        method(name)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("cascade(ngram)", None, "at least two"),
        ("cascade(ngram,none)", "somewhere", "none of ngram, none takes a source"),
        ("cascade(ngram,lm)", {"suffix": "x"}, "none of the members"),
    ],
)
def test_a_recipe_that_cannot_be_made_says_why(name, source, said):
    with pytest.raises(InvalidRequest, match=said):
        method(name).load(source, target(DTYPE), tokenizer())


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_text_is_unchanged_and_members_learn(rule):
    heat = 0.0 if rule == "rejection" else 0.8
    options = dict(seed=2, max_tokens=32, ignore_eos=True)
    params = SamplingParams(temperature=heat, **options)
    asked = [Case(prompt, params) for prompt in prompts()]
    suffix = SuffixDrafter.load(None, target(DTYPE), None)
    drafter = CascadeDrafter([suffix, LanguageModelDrafter(draft(DTYPE))])
    loop = engine(target(DTYPE), drafter, 8, rule=rule)
    got = finish(loop, asked)
    assert outputs(got) == outputs(plain(target(DTYPE), asked))
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in got) > 40
    assert drafter._trees == {}
    assert drafter._last_round == [set(), set()]
    for part in drafter.members:
        assert not any(one for one in vars(part).values() if isinstance(one, dict))


class Gets(Says):
    def __init__(self, *layers: int) -> None:
        super().__init__()
        self.hidden_layers, self.seen = layers, torch.empty(0)

    def on_hidden_states(
        self, request: Request, start: int, hidden: torch.Tensor
    ) -> None:
        self.seen = hidden


def test_each_member_gets_its_hidden_states():
    parts = [Gets(4, 1), Says(), Gets(2, 4)]
    both = CascadeDrafter(parts)
    assert both.hidden_layers == (1, 2, 4)
    both.on_hidden_states(one(), 0, torch.tensor([[10.0, 11, 20, 21, 40, 41]]))
    assert parts[0].seen.tolist() == [[40, 41, 10, 11]]
    assert parts[2].seen.tolist() == [[20, 21, 40, 41]]
