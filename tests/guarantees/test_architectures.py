"""Greedy text equals transformers' for every architecture, in its best mode. `make
test` takes one of two for its mode and one of nine for its text;
docs/numbers/models/sweep.json has all, and `make test-all` runs them.
"""

import json
import warnings
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

import zoo
from drafters import Foresight, RandomTree, known
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.model import Mode, Model
from foreword.types import Request, SamplingParams
from running import Answer, Case, engine, finish
from sweep import DTYPES, FILE, find
from tiny_models import ARCHITECTURES, EXPECTED, VOCAB, Support

NEW = 16
PROMISED = {Support.TREE: {Mode.TREE}, Support.PLAIN: {Mode.PLAIN}}
"""Elsewhere a chain is promised, in any mode that scores one."""


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


def requests(name: str) -> list[Case]:
    return [
        Case(tuple(prompt), SamplingParams(temperature=0, max_tokens=NEW))
        for prompt in prompts(name)
    ]


def known_texts(name: str) -> list[Answer]:
    return [
        Answer(Request(0, prompt + text, len(prompt), SamplingParams(), 0), [])
        for prompt, text in zip(prompts(name), greedy(name), strict=True)
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_runs_in_its_best_mode_and_warns_of_others(name):
    model, said = driven(name)
    assert model.mode in PROMISED.get(
        EXPECTED[name], {Mode.TREE, Mode.CHAIN, Mode.CACHE}
    )
    assert len(said) == (model.mode is not Mode.TREE)


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_that_of_transformers(name):
    model, _ = driven(name)
    truth = known(known_texts(name))
    drafters = {
        "plain": (None, 0, 512),
        "ngram": (NgramDrafter(), 5, 7),
        "chain": (Foresight(truth, spoilt=0.3, vocab=VOCAB), 5, 512),
    }
    if model.mode is Mode.TREE:
        drafters["tree"] = (RandomTree(truth, spoilt=0.3, vocab=VOCAB), 7, 7)
    for name_of, (drafter, nodes, chunk) in drafters.items():
        loop = engine(model, drafter, nodes, chunk=chunk)
        got = finish(loop, requests(name))
        assert [answer.tokens for answer in got] == list(greedy(name)), name_of
        assert loop.failed is None
        if name_of in ("chain", "tree"):
            accepted = sum(answer.request.stats.accepted for answer in got)
            assert (accepted > 0) == (model.mode is not Mode.PLAIN)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if EXPECTED[name] is not Support.TREE]
)
def test_trees_for_a_model_that_scores_chains_change_no_token(name):
    model, _ = driven(name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop = engine(model, RandomTree(known(known_texts(name)), vocab=VOCAB), 5)
        got = finish(loop, requests(name))
    assert [answer.tokens for answer in got] == list(greedy(name))
    assert len(said) <= 1
    if model.mode is not Mode.PLAIN:
        assert sum(answer.request.stats.accepted for answer in got) > 0


# ---- docs/numbers/models/sweep.json says of every kind of model what is found here


def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8"))["kinds"]


def test_every_kind_is_recorded_and_none_differs():
    kinds = recorded()
    assert set(kinds) == set(zoo.kinds())
    cells = [(kind, kinds[kind][dtype]) for kind in kinds for dtype in DTYPES]
    assert [kind for kind, cell in cells if cell["differs"]] == []
    assert all(cell["backend"] or cell["why"] for _, cell in cells)


def test_the_family_of_a_kind_is_what_its_config_says():
    found = {kind: zoo.family(kind) for kind in ("internlm3", "mamba", "mixtral")}
    assert found == {"internlm3": "dense", "mamba": "recurrent", "mixtral": "experts"}
    assert {kind: recorded()[kind]["family"] for kind in found} == found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "found"), recorded().items())
def test_no_bit_differs_on_the_backend_of_a_kind(kind, found):
    """The backend depends on this machine's arithmetic: the file may name another."""
    for dtype in DTYPES:
        if found[dtype]["backend"]:
            assert find(kind, dtype).differing == ()


def test_kind_registered_by_other_code_is_not_listed():
    class StrangeConfig(hf.LlamaConfig):
        model_type = "stranger_still"

    class StrangeModel(hf.LlamaForCausalLM):
        config_class = StrangeConfig

    hf.AutoModelForCausalLM.register(StrangeConfig, StrangeModel)
    assert StrangeConfig in hf.MODEL_FOR_CAUSAL_LM_MAPPING
    assert "stranger_still" not in zoo.kinds()
