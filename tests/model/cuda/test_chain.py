"""Chains drafted in one piece of work equal chains that grow token by token."""

from dataclasses import replace
from itertools import groupby

import pytest
import torch

import starter
from foreword.budget import FixedBudget
from foreword.draft import method
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.tree import coupled
from foreword.engine import Engine
from foreword.model import Model
from foreword.model.executors.cuda.ahead import AheadBackend as Chains
from foreword.model.executors.cuda.backend import CudaGraphBackend as Levels
from foreword.types import Draft, Request, SamplingParams
from foreword_train.methods.lm import load
from model.cuda import test_graph
from running import (
    TRAINED,
    Answer,
    Case,
    engine,
    finish,
    plain,
    prompts,
    shelf,
    target,
    tokenizer,
)

traced = test_graph.traced
pytestmark = pytest.mark.usefixtures("traced")


class PowerBudget(FixedBudget):
    """Rounds down as chains do; notes the probabilities."""

    def nodes(self, request: Request, others: int) -> int:
        return 1 << min(self.count, request.room - 1).bit_length() - 1

    def trim(self, draft: Draft) -> Draft:
        self.stated = [*getattr(self, "stated", []), *draft.trees[0].probabilities]
        return draft


class Watched(Chains):
    """Notes how many texts were open, and whether a chain was drafted."""

    def grow_chain(self, *arguments):
        grown = super().grow_chain(*arguments)
        self.drafts.append((len(self.pool._tables), grown is not None))
        return grown


def loop(
    kind, runner=test_graph.at_once, nodes: int = 4, *, trees: bool = False
) -> Engine:
    hf = load(starter.draft(), torch.float32)
    model = Model(hf, known=replace(target().capability, backend="graph"), swaps=[])
    # fewer rows than the prompt has, which is read without a chain
    model.backend = kind(hf, runner, (8,))
    made = engine(target(), LanguageModelDrafter(model), PowerBudget(nodes))
    if not trees:
        made.default.rule = replace(made.rule, lists="one")
    return made


def case(heat: float, length: int = 14, **params) -> Case:
    params |= dict(temperature=heat, seed=5, max_tokens=length, ignore_eos=True)
    return Case(prompts()[1], SamplingParams(**params))


def same_rounds(levels: Engine, chains: Engine, asked: Case) -> Answer:
    want, answer = (finish(one, [asked])[0] for one in (levels, chains))
    rounds = [replace(delta, id=0) for delta in answer.deltas]
    assert rounds == [replace(delta, id=0) for delta in want.deltas]
    assert chains.budget.stated == pytest.approx(levels.budget.stated, abs=1e-4)
    return answer


@pytest.mark.parametrize(("heat", "trees"), [(0.0, False), (0.8, False), (0.8, True)])
def test_rounds_are_those_of_drafts_that_grow_by_levels(heat, trees, monkeypatch):
    monkeypatch.setattr(coupled, "ROWS", 1)
    levels, chains = loop(Levels, trees=trees), loop(Chains, trees=trees)
    answer = same_rounds(levels, chains, case(heat))
    assert answer.request.stats.accepted > 3
    several = next(one.tokens for one in answer.deltas[1:] if len(one.tokens) > 2)
    stopped = same_rounds(levels, chains, case(heat, stop_token_ids=(several[1],)))
    assert stopped.request.stop_reason == several[1]


def with_head(name: str, runner=test_graph.at_once, *, chains: bool = True) -> Engine:
    hf, options = load(starter.target(), torch.float32), TRAINED[name]
    model = Model(hf, known=replace(target().capability, backend="graph"), swaps=[])
    model.backend = Levels(hf, runner, (32,))
    head = method(options.method).load(shelf(options), model, tokenizer())
    assert head.executor._records_chains
    head.executor._records_chains = chains
    made = engine(model, head, PowerBudget(4))
    made.default.rule = replace(made.rule, lists="one")
    return made


@pytest.mark.parametrize(("name", "heat"), [("eagle", 0.2), ("mtp", 0.0)])
def test_rounds_of_heads_are_those_of_drafts_that_grow_by_levels(
    name, heat, monkeypatch
):
    monkeypatch.setattr(coupled, "ROWS", 1)
    levels, chains = with_head(name, chains=False), with_head(name)
    answer = same_rounds(levels, chains, case(heat))
    assert answer.request.stats.accepted > 2


def test_heads_play_recordings(traced):
    chains, asked = with_head("eagle", traced), case(0.2)
    (answer,) = finish(chains, [asked])
    assert answer.tokens == plain(target(), [asked])[0].tokens
    assert answer.request.stats.accepted > 2
    # forwards of the target and of few sizes of drafts
    assert traced.recorded < 6 < traced.played


def test_recordings_are_played_until_the_pool_grows(traced):
    chains = loop(Chains, traced, 2)
    request = case(0.8).request(target().eos)
    chains.add(request)
    # a forward of the prompt, and a chain
    while traced.recorded < 2:
        chains.step()
    played = traced.played
    chains.step()
    assert (traced.recorded, traced.played > played) == (2, True)
    chains.drafter.model.open(-5, 3000)
    chains.drafter.model.close(-5)
    while not chains.idle:
        chains.step()
    assert traced.recorded == 3
    assert request.tokens[request.prompt :] == plain(target(), [case(0.8)])[0].tokens


def test_chains_pause_while_another_text_is_open():
    chains = loop(Watched, trees=True)
    drafts = chains.drafter.model.backend.drafts = []
    cases = case(0.8, 20), case(0.8, 4)
    want = [answer.tokens for answer in plain(target(), cases)]
    first, second = requests = [one.request(target().eos) for one in cases]
    chains.add(first)
    while not chains.idle:
        chains.step()
        if second.speculator is None and (1, True) in drafts:
            chains.add(second)
    assert [one.tokens[one.prompt :] for one in requests] == want
    kinds = [kind for kind, _ in groupby(drafts)]
    assert kinds == [(1, False), (1, True), (2, False), (1, True)]
    assert first.stats.accepted > 3


def test_chains_that_cannot_be_recorded_grow_by_levels():
    with pytest.warns(
        UserWarning, match="cannot record drafts.*not permitted"
    ) as warned:
        same_rounds(loop(Levels), loop(Chains, test_graph.Failing(1)), case(0.8))
    assert len(warned) == 1
