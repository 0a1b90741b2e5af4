"""Greedy text equals that of transformers for every architecture, and each is driven as
well as it allows.
"""

import warnings
from functools import cache

import pytest
import torch

from drafters import Foresight, RandomTree, known
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.model import Mode, Model
from foreword.types import SamplingParams, Sequence
from running import Answer, Request, engine, finish
from tiny_models import ARCHITECTURES, EXPECTED, VOCAB, Support

NEW = 24
PROMISED = {Support.TREE: {Mode.TREE}, Support.PLAIN: {Mode.PLAIN}}
"""Elsewhere a chain is promised, whichever way it is scored."""


def prompts(name: str) -> list[list[int]]:
    """Three prompts: two of 20 tokens, of which one repeats itself, and a short one."""
    rng = torch.Generator().manual_seed(len(name))
    drawn = torch.randint(0, VOCAB, (20,), generator=rng).tolist()
    return [drawn, drawn[:5] * 4, drawn[:6]]


@cache
def greedy(name: str) -> tuple[list[int], ...]:
    """What transformers itself writes, through its own cache and attention."""
    model = ARCHITECTURES[name]()
    texts = []
    for prompt in prompts(name):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW,
        )
        texts.append(out[0, len(prompt) :].tolist())
    return tuple(texts)


@cache
def driven(name: str) -> tuple[Model, list[str]]:
    """Our model, and what it warned of while it was made."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = Model(ARCHITECTURES[name]())
    return model, [
        str(warning.message)
        for warning in said
        if "runs in mode" in str(warning.message)
    ]


def requests(name: str) -> list[Request]:
    return [
        Request(tuple(prompt), SamplingParams(temperature=0, max_tokens=NEW))
        for prompt in prompts(name)
    ]


def known_texts(name: str) -> list[Answer]:
    return [
        Answer(Sequence(0, prompt + text, len(prompt), SamplingParams(), 0), [])
        for prompt, text in zip(prompts(name), greedy(name), strict=True)
    ]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_is_driven_as_well_as_it_allows_and_says_when_that_is_less_than_trees(
    name,
):
    model, said = driven(name)
    assert model.mode in PROMISED.get(
        EXPECTED[name], {Mode.TREE, Mode.CHAIN, Mode.CACHE}
    )
    assert len(said) == (model.mode is not Mode.TREE)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_that_of_transformers(name):
    model, _ = driven(name)
    truth = known(known_texts(name))
    guessers = {
        "plain": (None, 0, 512),
        "ngram": (NgramDrafter(), 5, 7),
        "chain": (Foresight(truth, spoilt=0.3, vocab=VOCAB), 5, 512),
    }
    if model.mode is Mode.TREE:
        guessers["tree"] = (RandomTree(truth, spoilt=0.3, vocab=VOCAB), 7, 7)
    for guesser, (drafter, nodes, chunk) in guessers.items():
        loop = engine(model, drafter, nodes, chunk=chunk)
        got = finish(loop, requests(name))
        assert [answer.tokens for answer in got] == list(greedy(name)), guesser
        assert loop.failed is None
        if guesser in ("chain", "tree"):
            accepted = sum(answer.sequence.stats.accepted for answer in got)
            assert (accepted > 0) == (model.mode is not Mode.PLAIN)


@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if EXPECTED[name] is not Support.TREE]
)
def test_trees_for_a_model_that_scores_chains_only_change_no_token(name):
    model, _ = driven(name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop = engine(model, RandomTree(known(known_texts(name)), vocab=VOCAB), 5)
        got = finish(loop, requests(name))
    assert [answer.tokens for answer in got] == list(greedy(name))
    assert len(said) <= 1
