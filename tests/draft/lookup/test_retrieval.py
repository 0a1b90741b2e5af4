"""The lookup in other texts: trees of continuations with true probabilities."""

from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.api.llm import LLM
from foreword.draft.lookup.datastore import Datastore, build
from foreword.draft.lookup.retrieval import (
    GROWTH,
    NOVELTY,
    Occurrence,
    RetrievalDrafter,
    grown,
)
from foreword.errors import InvalidRequest, ModelError, VocabularyMismatch
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, DraftTree, Request, SamplingParams
from running import datastore, draft, target, tokenizer

GREEDY = SamplingParams(temperature=0)

after = st.lists(st.integers(0, 2), max_size=5).map(tuple)
rows = st.lists(st.tuples(after, st.integers(1, 16), st.integers(1, 3)), max_size=8)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((found[parent] if parent >= 0 else ()) + (token,))
    return found


def probabilities(
    found: list[Occurrence], novelty: float
) -> dict[tuple[int, ...], float]:
    """The definition: of every beginning of what followed, its shares' product."""
    weighed: dict[tuple[int, ...], float] = {}
    texts = [one.after for one in found]
    for path in {text[:end] for text in texts for end in range(1, len(text) + 1)}:
        probability = 1.0
        for depth in range(len(path)):
            every, same = (
                sum(
                    one.times * GROWTH ** min(16, one.agree + depth)
                    for one in found
                    if one.after[:length] == path[:length]
                )
                for length in (depth, depth + 1)
            )
            probability *= same / (every + novelty)
        weighed[path] = probability
    return weighed


@given(rows, st.integers(0, 12), st.floats(0.5, 100))
def test_a_tree_holds_the_likeliest_beginnings(rows, most, novelty):
    found = [Occurrence(*row) for row in rows]
    tree, wanted = grown(found, most, novelty), probabilities(found, novelty)
    assert len(tree.tokens) == min(most, len(wanted))
    assert len(set(paths(tree))) == len(tree.tokens)
    assert tree.probabilities == pytest.approx([wanted[path] for path in paths(tree)])
    best = sorted(wanted.values(), reverse=True)[:most]
    assert tree.probabilities == pytest.approx(best)
    assert tree.probabilities == sorted(tree.probabilities, reverse=True)


@given(rows, st.floats(0.001, 0.5))
def test_what_is_below_the_floor_is_left_out(rows, floor):
    found = [Occurrence(*row) for row in rows]
    whole, cut = grown(found, 99, 5.0), grown(found, 99, 5.0, floor=floor)
    above = [probability for probability in whole.probabilities if probability > floor]
    assert len(cut.tokens) == len(above)


@given(rows, st.integers(0, 5))
def test_a_chain_follows_the_likeliest_child(rows, most):
    found = [Occurrence(*row) for row in rows]
    chain, wanted = grown(found, most, 5.0, chain=True), probabilities(found, 5.0)
    assert chain.parents == list(range(-1, len(chain.tokens) - 1))
    for depth, path in enumerate(paths(chain)):
        others = [other for other in wanted if len(other) == depth + 1]
        rivals = [wanted[one] for one in others if one[:depth] == path[:depth]]
        assert wanted[path] == pytest.approx(max(rivals))


@given(rows)
def test_nothing_follows_an_end_of_text(rows):
    found = [Occurrence(*row) for row in rows]
    tree = grown(found, 99, 5.0, ends=frozenset({0}))
    every = probabilities(found, 5.0)
    assert set(paths(tree)) == {path for path in every if 0 not in path[:-1]}


@cache
def clichés() -> tuple[str, ...]:
    """Texts of a few phrases, each at a probability of its own."""
    dice = Random(1)
    phrases = ("once upon a time", "in the beginning", "once more into the fire")
    phrases += ("a time to go", "the end")
    texts = (". ".join(dice.choices(phrases, (5, 3, 2, 1, 1), k=8)) for _ in range(400))
    return tuple(texts)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory) -> RetrievalDrafter:
    folder = tmp_path_factory.mktemp("store") / "store"
    build([("clichés", text) for text in clichés()[:300]], tokenizer(), folder)
    return RetrievalDrafter(Datastore(folder, tokenizer()))


def request(tokens: list[int], params: SamplingParams = GREEDY) -> Request:
    return Request(1, list(tokens), 1, params, 0)


def batch(*requests: Request, **options) -> Batch:
    return Batch(requests, NoiseStreams(target().vocab, shared=True), **options)


def test_probabilities_are_calibrated(drafter):
    """On new texts of the same kind: at least as often as the probabilities say."""
    said, came = [], []
    for text in clichés()[300:]:
        tokens = tokenizer()(text)["input_ids"]
        for place in range(4, len(tokens) - 4, 11):
            draft = drafter.propose(batch(request(tokens[:place])), [8])
            tree = draft.trees[0]
            pairs = zip(tree.paths[1:], tree.probabilities, strict=True)
            for path, probability in pairs:
                said.append(probability)
                came.append(tokens[place : place + len(path)] == path)
    assert len(said) > 1000
    seen = []
    for low, high in ((0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
        pairs = zip(said, came, strict=True)
        some = [pair for pair in pairs if low <= pair[0] < high]
        assert len(some) > 40
        expected, true = (sum(column) / len(some) for column in zip(*some, strict=True))
        assert expected - 0.05 < true < expected + 0.2
        seen.append(true)
    assert seen == sorted(seen)


def test_hot_text_is_predicted_less_surely(drafter):
    tokens = tokenizer()("once upon a")["input_ids"]
    found = []
    for heat in (0.0, 1.0):
        one = request(tokens, SamplingParams(temperature=heat))
        found.append(drafter.propose(batch(one), [3]).trees[0].probabilities[0])
    assert found[1] < found[0]


def test_a_longer_match_counts_more():
    found = [Occurrence((1,), 2, 3), Occurrence((2,), 12, 1)]
    tree = grown(found, 2, NOVELTY)
    assert tree.tokens == [2, 1]


def test_it_says_what_followed(drafter):
    text = "In the news: once more into the"
    draft = drafter.propose(batch(request(tokenizer()(text)["input_ids"])), [1])
    word = tokenizer().decode(draft.tokens[0].tolist()).strip()
    assert word
    assert "fire".startswith(word)


def test_trees_where_they_are_verified_and_chains_where_not(drafter):
    tokens = tokenizer()("the end.")["input_ids"]
    assert not drafter.propose(batch(request(tokens)), [8]).chain
    alone = drafter.propose(batch(request(tokens), trees=False), [8])
    assert alone.chain
    assert alone.count.tolist() == [8]


def test_a_floor_and_a_short_match_are_respected(drafter):
    tokens = tokenizer()("once upon a")["input_ids"]
    high = drafter.propose(batch(request(tokens), floor=0.9999), [8])
    assert high.count.tolist() == [0]
    strict = RetrievalDrafter(drafter._datastore, min_match=16)
    assert strict.propose(batch(request(tokens)), [8]).count.tolist() == [0]
    assert drafter.propose(batch(request(tokens)), [8]).count.tolist() == [8]


@pytest.mark.parametrize(
    "options", [{"occurrences": 0}, {"min_match": 0}, {"min_match": 17}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidRequest, match="min_match"):
        RetrievalDrafter(datastore(), **options)


def test_loading_says_how_a_datastore_is_built(tmp_path: Path):
    for source in (None, draft()):
        with pytest.raises(InvalidRequest, match="foreword index"):
            RetrievalDrafter.load(source, target(), tokenizer())
    with pytest.raises(InvalidRequest, match="no such folder exists"):
        LLM(method="retrieval", draft=tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"meta.json is unreadable"):
        RetrievalDrafter.load(tmp_path, target(), tokenizer())


def test_token_ids_that_the_model_has_not_are_refused(tmp_path: Path):
    build([("here", "a few words")], tokenizer(), tmp_path / "store")
    meta = tmp_path / "store" / "meta.json"
    vocab = target().vocab
    text = meta.read_text()
    meta.write_text(text.replace(f'"vocab": {vocab}', f'"vocab": {vocab + 1}'))
    with pytest.raises(VocabularyMismatch, match="token ids, and the model"):
        RetrievalDrafter.load(tmp_path / "store", target(), None)


def test_the_library_takes_the_folder(tmp_path: Path):
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompt = "The capital of France is"
    plain = LLM(method="none").generate(prompt, params)[0]
    build([("here", prompt + plain.text)], tokenizer(), tmp_path / "store")
    llm = LLM(method="retrieval", draft=tmp_path / "store", nodes=4)
    found = llm.generate(prompt, params)[0]
    assert found.tokens == plain.tokens
    assert found.stats.accepted >= 8
