"""A traced round says what happened in it; tracing changes no text."""

from collections import Counter

import pytest
import torch

import starter
from drafters import Breaking, Foresight, RandomTree, known
from foreword.budget import FixedBudget
from foreword.draft.base import Drafter
from foreword.model import Model
from foreword.sampling.logits import weights
from foreword.types import Draft, DraftTree, Request, SamplingParams
from foreword.types.round import REASONS, Round
from foreword.verify import RULES
from running import (
    Answer,
    Case,
    distribution,
    drafter,
    engine,
    finish,
    plain,
    prompts,
    target,
)

DTYPE = "bfloat16"
KINDS = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2},
)


def requests(*traced: bool, **params: object) -> list[Case]:
    """One request of each kind, with or without a trace."""
    values = {"max_tokens": 14, "ignore_eos": True} | params
    rows = zip(prompts(), KINDS, traced, strict=False)
    found = []
    for seed, (prompt, kind, trace) in enumerate(rows):
        options = dict(seed=seed, trace=trace) | kind | values
        found.append(Case(prompt, SamplingParams(**options)))
    return found


def rounds(answer: Answer) -> list[Round]:
    found = [delta.round for delta in answer.deltas]
    assert None not in found
    return found


def run(make, budget=6, asked=None, **options: object) -> list[Answer]:
    made = make if isinstance(make, Drafter) else drafter(make, DTYPE)
    loop = engine(target(DTYPE), made, budget, **options)
    return finish(loop, asked or requests(True, True, True))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["lm", "ngram"])
@pytest.mark.parametrize("rule", RULES)
def test_a_trace_never_changes_the_text(rule, name):
    """Trees and chains, every rule, each request beside traced and untraced ones."""
    want = run(name, asked=requests(False, False, False), rule=rule)
    assert sum(answer.request.stats.accepted for answer in want) > 0
    for flags in ((True, True, True), (False, True, False)):
        got = run(name, asked=requests(*flags), rule=rule)
        assert [answer.said for answer in got] == [answer.said for answer in want]
        counts = [[one.request.stats.accepted for one in each] for each in (got, want)]
        assert counts[0] == counts[1]
        assert [answer.deltas[0].round is not None for answer in got] == list(flags)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "rule"),
    [("lm", "match"), ("lm", "traversal"), ("ngram", "match"), ("lm", "block")],
)
def test_a_round_agrees_with_its_delta(name, rule):
    for answer in run(name, rule=rule):
        for delta, one in zip(answer.deltas, rounds(answer), strict=True):
            assert one.tokens == list(delta.tokens)
            assert one.pieces == delta.pieces
            assert len(one.draft) == delta.drafted <= one.budget
            accepted = min(len(one.accepted), len(one.pieces))
            assert delta.origins.count("accepted") == accepted
            assert (one.undrafted is None) == bool(one.draft)
            for number, node in enumerate(one.draft):
                assert -1 <= node.parent < number
            parents = [one.draft[node].parent for node in one.accepted]
            assert parents == [-1, *one.accepted][: len(parents)]
            for parent in range(-1, len(one.draft)):
                below = [node for node in one.draft if node.parent == parent]
                children = {node.token: node.target_prob for node in below}
                assert 0 <= sum(children.values()) <= 1.0001


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rule", ["match", "traversal"])
def test_target_probabilities_are_of_the_sampled_distribution(kind, rule):
    options = dict(max_tokens=12, ignore_eos=True, seed=1, trace=True)
    asked = [Case(prompts()[1], SamplingParams(**options, **kind))]
    (answer,) = run("lm", asked=asked, rule=rule)
    sequence, said = answer.request, 0
    for one in rounds(answer):
        text = sequence.tokens[: sequence.prompt + said]
        tokens = [node.token for node in one.draft]
        paths = DraftTree(tokens, [node.parent for node in one.draft]).paths
        given = [(node.parent, node.token, node.target_prob) for node in one.draft]
        last = one.accepted[-1] if one.accepted else -1
        given.append((last, one.added.token, one.added.target_prob))
        for parent, token, found in given:
            path = paths[parent + 1]
            before = Request(0, text, sequence.prompt, sequence.params, seed=0)
            logits = distribution(target(DTYPE), [*text, *path])[-1:]
            want = weights(logits, before, [path]).softmax(-1)[0, token]
            assert found == pytest.approx(float(want), rel=1e-3, abs=1e-6)
        said += len(one.pieces)
    assert said == 12


class Stated(Foresight):
    """A drafter of one given draft, in the first round."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(lambda _: [])
        self.draft = draft

    def propose(self, batch, nodes):
        return Draft([DraftTree()]) if batch.requests[0].produced else self.draft


def test_draft_probabilities_are_those_of_a_token_after_its_parent():
    asked = requests(True, temperature=1.0, max_tokens=8)[:1]
    tree = DraftTree([5, 6, 7], [-1, 0, -1], [0.5, 0.125, 0.25])
    (answer,) = run(Stated(Draft([tree])), asked=asked)
    assert [node.draft_prob for node in rounds(answer)[0].draft] == [0.5, 0.25, 0.25]
    q = torch.zeros(1, 2, target(DTYPE).vocab)
    q[0, 0, 5], q[0, 0, 9], q[0, 1, 6] = 0.75, 0.25, 1.0
    drawn = Draft([DraftTree([5, 6], [-1, 0])], q)
    (answer,) = run(Stated(drawn), asked=asked, rule="block")
    assert [node.draft_prob for node in rounds(answer)[0].draft] == [0.75, 1.0]
    (answer,) = run(Stated(Draft([DraftTree([5, 6], [-1, 0])])), asked=asked)
    assert [node.draft_prob for node in rounds(answer)[0].draft] == [None, None]


def test_the_added_token_is_a_bonus_a_correction_or_plain():
    asked = requests(True, True, True)
    truth = known(plain(target(DTYPE), asked))
    for spoilt, kind in ((0.0, "bonus"), (1.0, "correction")):
        answers = run(Foresight(truth, spoilt=spoilt), asked=asked)
        every = [one for answer in answers for one in rounds(answer)]
        assert {one.added.kind for one in every if one.draft} == {kind}
    found = {one.added.kind for answer in run("none") for one in rounds(answer)}
    assert found == {"plain"}


def test_answer_may_end_inside_the_accepted_path():
    free = plain(target(DTYPE), requests(True, max_tokens=12))[0]
    asked = requests(True, max_tokens=12, stop_token_ids=(free.tokens[2],))
    end = free.tokens.index(free.tokens[2]) + 1
    (answer,) = run(Foresight(known([free])), 8, asked)
    (one,) = rounds(answer)
    assert len(one.accepted) == 8
    assert len(one.pieces) == end
    assert one.tokens == answer.tokens == free.tokens[:end]


def test_texts_of_tokens_join_to_the_text_of_the_path():
    asked = requests(True, True, True, skip_special_tokens=False)
    for answer in run("lm", asked=asked):
        shown = ""
        for one in rounds(answer):
            texts = [one.draft[node].text for node in one.accepted]
            shown += "".join([*texts, one.added.text][: len(one.pieces)])
        assert shown == answer.text


class Drops(FixedBudget):
    """Lets the drafter propose, and drops all of it."""

    def trim(self, draft: Draft) -> Draft:
        return draft.pruned([[] for _ in draft.trees])


BROKE = f"{REASONS['failed']} RuntimeError: it broke"


def raises(batch, nodes):
    raise RuntimeError("it broke")


@pytest.mark.parametrize(
    ("reason", "make", "budget", "params"),
    [
        ("method", "none", 0, {}),
        ("budget", "ngram", 0, {}),
        ("last-token", "ngram", 4, {"max_tokens": 1}),
        ("no-match", "ngram", 4, {}),
        ("dropped", "lm", Drops(4), {}),
    ],
)
def test_a_round_without_a_draft_has_a_reason(reason, make, budget, params):
    (answer,) = run(make, budget, requests(True, **{"max_tokens": 6} | params))
    one = rounds(answer)[0]
    assert (one.draft, one.accepted, one.added.kind) == ((), (), "plain")
    assert (one.undrafted.reason, one.undrafted.text) == (reason, REASONS[reason])
    assert answer.request.stats.undrafted[reason] >= 1


def test_a_drafter_that_failed_is_a_reason_with_its_error():
    asked = requests(True)
    truth = known(plain(target(DTYPE), asked))
    broken = Breaking(truth, raises, where="propose", after=1)
    with pytest.warns(RuntimeWarning, match="the drafter failed"):
        (answer,) = run(broken, 2, asked)
    assert rounds(answer)[0].draft
    assert {one.undrafted.reason for one in rounds(answer)[1:]} == {"failed"}
    assert rounds(answer)[1].undrafted.text == BROKE


def test_drafter_that_fails_in_batches_is_a_reason():
    class Alone(Foresight):
        def propose(self, batch, nodes):
            if len(batch) > 1:
                raises(batch, nodes)
            return super().propose(batch, nodes)

    # a third fault would pause the drafter, and warn again
    asked = requests(True, True, max_tokens=2)
    with pytest.warns(RuntimeWarning, match="is off for one round"):
        answers = run(Alone(known(plain(target(DTYPE), asked))), 2, asked)
    first = [rounds(answer)[0].undrafted for answer in answers]
    assert [one.text for one in first] == [BROKE] * 2


def test_a_backend_that_verifies_no_draft_tokens_is_a_reason():
    model = Model.load(starter.target(), dtype="float32", backend="plain")
    (answer,) = finish(engine(model, drafter("ngram"), 4), requests(True, max_tokens=3))
    assert {one.undrafted.reason for one in rounds(answer)[:-1]} == {"target"}


def test_every_reason_has_a_test():
    marks = test_a_round_without_a_draft_has_a_reason.pytestmark[0].args[1]
    assert {row[0] for row in marks} | {"failed", "target"} == set(REASONS)


def test_times_rows_and_the_prompt_are_those_of_the_forward():
    asked = requests(True, True)
    answers = run("lm", 4, asked, chunk=4)
    for answer, request in zip(answers, asked, strict=True):
        stats, first = answer.request.stats, rounds(answer)[0]
        assert first.prefill_ms == pytest.approx(1000 * stats.prefill, rel=1e-4)
        assert 0 < first.prefill_tokens == stats.prefill_tokens < len(request.prompt)
        for one in rounds(answer)[1:]:
            assert (one.prefill_tokens, one.prefill_ms) == (0, 0.0)
        for step in ("propose", "score", "verify", "commit"):
            steps = [getattr(one, f"{step}_ms") for one in rounds(answer)]
            assert sum(steps) == pytest.approx(1000 * getattr(stats, step), rel=1e-3)
            assert min(steps) > 0
    alone = rounds(run("lm", 4, asked[:1])[0])
    assert [one.sequences for one in alone] == [1] * len(alone)
    assert alone[0].prompt_rows == len(asked[0].prompt)
    others = [one.rows - one.prompt_rows - len(one.draft) for one in alone]
    assert others == [0] + [1] * (len(alone) - 1)


@pytest.mark.parametrize(("make", "nodes"), [("lm", 1), ("lm", 5), ("ngram", 5)])
def test_the_statistics_are_those_of_the_rounds(make, nodes):
    for answer in run(make, nodes):
        stats, every = answer.request.stats, rounds(answer)
        drafting = [one for one in every if one.draft]
        assert stats.drafting_rounds == len(drafting)
        counts = Counter(len(one.accepted) for one in drafting)
        lengths = range(len(stats.drafted_at) + 1)
        assert stats.accepted_counts == [counts[length] for length in lengths]
        reasons = [one.undrafted.reason for one in every if one.undrafted]
        assert stats.undrafted == Counter(reasons)
        assert sum(stats.undrafted.values()) == stats.rounds - stats.drafting_rounds


def test_statistics_without_a_draft_are_empty():
    stats = run("none", 0, requests(False))[0].request.stats
    assert (stats.drafting_rounds, stats.accepted_counts) == (0, [])
    assert stats.undrafted == {"method": stats.rounds}


def test_a_path_on_which_a_processor_fails_has_no_probability():
    def fails_after_five(text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if int(text[0, -1]) == 5:
            raise ValueError("5 is not to be read")
        return scores

    options = dict(temperature=1.0, max_tokens=4, processors=(fails_after_five,))
    asked = requests(True, **options)
    tree = DraftTree([5, 6, 7], [-1, 0, -1], [0.5, 0.25, 0.25])
    (answer,) = run(Stated(Draft([tree])), asked=asked)
    first = rounds(answer)[0].draft
    assert [node.target_prob is None for node in first] == [False, True, False]


def test_trees_are_traced_as_trees():
    asked = requests(True, True, True)
    answers = run(RandomTree(known(plain(target(DTYPE), asked)), spoilt=0.3), 8, asked)
    every = [one for answer in answers for one in rounds(answer)]
    shapes = [[node.parent for node in one.draft] for one in every]
    assert any(shape != list(range(-1, len(shape) - 1)) for shape in shapes)
    assert sum(len(one.accepted) for answer in answers for one in rounds(answer)) > 0
