"""Coupled trees: best-first, true probabilities, one C call as defined."""

import math
from dataclasses import replace
from functools import partial
from itertools import chain, count

import pytest
import torch

import starter
import tiny_models
from drafters import paths
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.tree.calibration import Calibration
from foreword.draft.tree.coupled import SHARPER, CoupledTree
from foreword.draft.tree.drafter import CHUNK, catch_up
from foreword.draft.vocabulary import DraftVocabulary
from foreword.model import Model, Read
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree, Request, SamplingParams
from running import DTYPE, Case, draft, engine, finish, outputs, plain, prompts, target

_ids = count(1_000_000)
SETTINGS = [(heat, {}) for heat in (0.0, 0.7, 1.0, 1.3)]
SETTINGS += [(0.9, {"top_p": 0.9, "repetition_penalty": 1.2})]


def request(temperature: float, tokens=(), **params: object) -> Request:
    asked = SamplingParams(temperature=temperature, max_tokens=64, **params)
    text = list(tokens or prompts()[1])
    return Request(next(_ids), text, len(text), asked, seed=7, eos=target().eos)


def batch(*requests: Request, trees: bool = True, floor: float = 0.0) -> Batch:
    return Batch(requests, NoiseStreams(target().vocab, shared=True), trees, floor)


def child_distribution(
    one: Request, path: tuple[int, ...], confidence: Calibration
) -> torch.Tensor:
    """The probability of every token after a path, from a fresh reading: definition."""
    model, text = draft(), [*one.tokens, *path]
    from foreword.model import Read
    from foreword.sampling.logits import weights

    model.open(-5, len(text))
    logits = model.read([Read(-5, 0, text, keep=1)])
    model.close(-5)
    distribution = weights(logits, one, [list(path)])[0]
    noise = NoiseStreams(target().vocab, shared=True).drafting(one, path)
    values = distribution if noise is None else SHARPER * distribution + noise
    return (values / confidence.scale(one.params.temperature)).softmax(-1)


@pytest.mark.parametrize(("temperature", "params"), SETTINGS)
def test_the_tree_is_the_one_that_best_first_search_finds(temperature, params):
    """Search that reads the whole text for each draft token, after the likeliest."""
    one, most, confidence = request(temperature, **params), 9, Calibration()
    best: dict[tuple[int, ...], float] = {}
    waiting: dict[tuple[int, ...], float] = {(): 1.0}
    while len(best) <= most:
        path = max(waiting, key=waiting.__getitem__)
        best[path] = probability = waiting.pop(path)
        if path and path[-1] in one.eos:
            continue
        distribution = child_distribution(one, path, confidence).topk(8)
        likeliest = (distribution.indices.tolist(), distribution.values.tolist())
        pairs = zip(*likeliest, strict=True)
        waiting |= {(*path, token): probability * share for token, share in pairs}
    best.pop(())
    found = paths(LanguageModelDrafter(draft()).propose(batch(one), [most]))
    assert found.keys() == best.keys()
    assert list(found.values()) == pytest.approx(list(best.values()), rel=1e-3)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("most", [1, 5, 24])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("trees", [True, False])
def test_one_call_grows_the_tree_that_levels_grow(
    temperature, most, trees, monkeypatch
):
    check_growth(draft("bfloat16"), request, temperature, most, trees, monkeypatch)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_one_call_grows_it_from_vocabulary_of_odd_size_too(temperature, monkeypatch):
    hf = tiny_models.extended("llama-gqa").to(torch.bfloat16)
    # so that the last ones are among the draft tokens
    hf.lm_head.weight.data[tiny_models.VOCAB :] *= 4
    model = Model(hf)
    start = partial(request, tokens=tuple(range(5, 30)))
    drafted = check_growth(model, start, temperature, 60, True, monkeypatch)
    assert drafted & set(range(tiny_models.VOCAB, model.vocab))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_one_call_grows_it_from_some_ids_too(temperature, monkeypatch):
    model = Model.load(starter.draft(), dtype="bfloat16")
    ids = DraftVocabulary(model, 2000, {8191})
    drafted = check_growth(model, request, temperature, 24, True, monkeypatch, ids)
    assert drafted <= {*ids.tokens.tolist()}


def check_growth(
    model, start, temperature, most, trees, monkeypatch, vocabulary=None
) -> set[int]:
    """Both ways from a text, then from one that has gone on; returns the drafts."""
    if not hasattr(model.backend, "grow"):
        pytest.skip("no native driver here")

    def batch(*requests: Request, **given) -> Batch:
        return Batch(requests, NoiseStreams(model.vocab, shared=True), **given)

    made = []
    for at_once in (True, False):
        with monkeypatch.context() as patch:
            if not at_once:
                patch.setattr(CoupledTree, "at_once", lambda *_: False)
            drafter = LanguageModelDrafter(model)
            drafter.draft_vocabulary = vocabulary
            one = start(temperature)
            first = drafter.propose(batch(one, trees=trees, floor=0.003), [most])
            growth = drafter._coupled[one.id]
            # a branch that was accepted, and a token that was not drafted
            one.tokens += [*first.trees[0].paths[-1], 11]
            second = drafter.propose(batch(one, trees=trees, expand=0.02), [most])
            (tree,) = second.trees
            parents = [node for node in tree.parents if node >= 0]
            assert all(tree.probabilities[node] > 0.02 for node in parents)
            made.append((first, second, growth))
            drafter.release(one)
    for ours, plain_ones in zip(made[0][:2], made[1][:2], strict=True):
        assert torch.equal(ours.tokens, plain_ones.tokens)
        assert torch.equal(ours.parents, plain_ones.parents)
        assert ours.trees[0].probabilities == pytest.approx(
            plain_ones.trees[0].probabilities, rel=1e-4, abs=1e-6
        )
        assert ours.chain or trees
    ours, plain_ones = made[0][2], made[1][2]
    assert ours.expanded.tokens == plain_ones.expanded.tokens
    assert ours.expanded.parents == plain_ones.expanded.parents
    assert len(ours.children) == len(plain_ones.children) == len(ours.expanded) + 1
    for (tokens, values), (wanted, right) in zip(
        ours.children, plain_ones.children, strict=True
    ):
        assert tokens == wanted
        assert values == pytest.approx(right, rel=1e-4, abs=1e-4)
    return set(made[0][0].trees[0].tokens)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_probabilities_are_calibrated(temperature):
    """The accepted share is the promised probability; not at 0: prompts loop."""
    asked = [
        Case(prompt, SamplingParams(temperature=temperature, seed=s, max_tokens=40))
        for s in (1, 2)
        for prompt in prompts()
    ]
    promised, came, trials = 0.0, 0, 0.0

    class Watched(LanguageModelDrafter):
        def observe(self, batch, draft, verdict, scores):
            nonlocal promised, came, trials
            if not draft.nodes:
                return
            for probability in chain.from_iterable(
                tree.probabilities for tree in draft.trees
            ):
                promised += probability
                trials += probability * (1 - probability)
            came += int(verdict.accepted.sum())
            super().observe(batch, draft, verdict, scores)

    finish(engine(target(DTYPE), Watched(draft(DTYPE)), 8), asked)
    assert promised > 50
    assert abs(came - promised) < 0.15 * promised + 4 * math.sqrt(trials)


def test_a_confidence_learns_how_far_a_drafter_is_off():
    """Children off by Gumbel errors of a known scale: the estimate comes near it."""
    rng = torch.Generator().manual_seed(0)
    for truth, start in ((1.5, 0.6), (0.3, 0.8)):
        confidence = Calibration(error=start)
        for _ in range(3000):
            values = torch.randn(8, generator=rng) * 2
            errors = truth * (-torch.rand(8, generator=rng).log()).log()
            drawn = int((values - errors).argmax())
            confidence.learn(values.tolist(), drawn, 0.0)
        assert confidence.error == pytest.approx(truth, rel=0.15)


def test_floor_leaves_out_what_is_below_it_and_nothing_else():
    one, other = request(1.0), request(1.0)
    drafter = LanguageModelDrafter(draft())
    whole, floored = (
        paths(drafter.propose(batch(s, floor=f), [30]))
        for s, f in ((one, 0.0), (other, 0.05))
    )
    kept = {path: p for path, p in whole.items() if p > 0.05}
    assert floored == pytest.approx(kept, rel=1e-5)
    assert 0 < len(floored) < len(whole)


def test_nothing_follows_eos_and_processors_apply():
    one = request(0.0)
    first = paths(LanguageModelDrafter(draft()).propose(batch(one), [12]))
    likeliest = next(iter(first))[0]
    ended = request(0.0)
    ended.eos = frozenset({likeliest})
    found = paths(LanguageModelDrafter(draft()).propose(batch(ended), [12]))
    assert not any(len(path) > 1 and path[0] == likeliest for path in found)

    def never(tokens, scores):
        if int(tokens[0, -1]) == likeliest:
            raise RuntimeError("not after this")
        return scores

    fussy = request(0.0, processors=(never,))
    found = paths(LanguageModelDrafter(draft()).propose(batch(fussy), [12]))
    assert (likeliest,) in found
    assert not any(len(path) > 1 and path[0] == likeliest for path in found)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("left", [2, 3])
def test_tree_is_no_deeper_than_the_text(left, shared, monkeypatch):
    """The last token is the target's own; no level is asked for beyond the room."""
    one, model, reads = request(1.0), draft(), []
    one.params = replace(one.params, max_tokens=left)
    read = model.backend.read

    def noted(asked: list[Read]) -> torch.Tensor:
        reads.append(asked)
        return read(asked)

    monkeypatch.setattr(model.backend, "read", noted)
    streams = NoiseStreams(target().vocab, shared=shared, lists="distinct")
    together = Batch((one,), streams)
    (tree,) = LanguageModelDrafter(model).propose(together, [16]).trees
    assert max(tree.depths) == left - 1 == len(reads)
    assert len(tree) == (16 if left > 2 else 8 if shared else 4)


def test_trees_need_fewer_rounds_than_chains():
    """With equal nodes, on the same requests; this is what they are for."""
    for temperature in (0.0, 1.0):
        long = dict(seed=3, max_tokens=48, ignore_eos=True)
        params = SamplingParams(temperature=temperature, **long)
        asked = [Case(prompt, params) for prompt in prompts()]
        rounds = []
        for breadth in (True, False):

            class Shaped(LanguageModelDrafter):
                trees = breadth

                def propose(self, batch, nodes):
                    given = (batch.requests, batch.draws, self.trees, batch.floor)
                    return super().propose(Batch(*given), nodes)

            got = finish(engine(target(DTYPE), Shaped(draft(DTYPE)), 12), asked)
            assert outputs(got) == outputs(plain(target(DTYPE), asked))
            rounds.append(sum(answer.request.stats.rounds for answer in got))
        assert rounds[0] < rounds[1]


def test_a_tree_can_be_cut_straightened_and_padded():
    tree = DraftTree()
    first, second = tree.add(5, -1, 0.6), tree.add(6, -1, 0.3)
    third, fourth = tree.add(7, first, 0.4), tree.add(8, second, 0.1)
    assert (third, fourth) == (2, 3)
    assert tree.best(3) == [first, third, second]
    assert tree.best(4, floor=0.35) == [first, third]
    cut = tree.cut(3)
    assert (cut.tokens, cut.parents) == ([5, 7, 6], [-1, 0, -1])
    assert cut.probabilities == [0.6, 0.4, 0.3]
    assert tree.as_chain().tokens == [5, 7]
    made = Draft([tree, DraftTree(), cut.as_chain()])
    assert not made.chain
    assert made.tokens.tolist() == [[5, 6, 7, 8], [0] * 4, [5, 7, 0, 0]]
    assert made.parents.tolist() == [[-1, -1, 0, 1], [-1] * 4, [-1, 0, -1, -1]]
    assert made.count.tolist() == [4, 0, 2]
    assert Draft([cut.as_chain(), DraftTree()]).chain
    assert made.trees[2].tokens == [5, 7]
    assert tree.children_by_token()[-1] == {5: 0, 6: 1}


@pytest.mark.parametrize("missing", [1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_every_token_is_read_once_and_in_order(missing):
    tokens, past = list(range(missing)), 9
    chunks: list[Read] = []
    end = catch_up(4, past, tokens, chunks.append)
    read = [*chunks, end]
    assert [token for one in read for token in one.tokens] == tokens
    assert [one.past for one in read] == list(range(past, past + missing, CHUNK))
    assert {one.id for one in read} == {4}


def test_only_the_end_is_scored():
    chunks: list[Read] = []
    end = catch_up(4, 0, [0] * (2 * CHUNK + 1), chunks.append)
    assert [one.keep for one in chunks] == [0, 0]
    assert (end.keep, len(end.tokens)) == (1, 1)
