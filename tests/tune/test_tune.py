"""The search for halves of layers to leave out: it finds what is there, forgets
nothing, measures rightly.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from torch.nn import ModuleList
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from foreword.api.llm import LLM
from foreword.bench.inflate.model import Shape, inflate, shape_of
from foreword.draft.self_speculative.base import SPARE
from foreword.draft.self_speculative.layers import (
    DEEPEST,
    LayersDrafter,
    costs,
    first,
    load,
)
from foreword.errors import InvalidRequest
from foreword.model import Read
from foreword.model.view import view
from foreword.sampling.streams import NoiseStreams
from foreword.tune.replay import MaskReplay
from foreword.tune.run import MaskSearch, TuneOptions, tune
from foreword.types import Batch, Request
from foreword.types.params import SamplingParams
from running import prompts, target, tokenizer

DTYPE = "bfloat16"
PLANTED = frozenset({1, 4, 9, 10, 15, 20})
SPARES, LAYERS = frozenset({1, 2, 4, 5, 7, 8, 9, 11}), 12
FREE = frozenset(2 * layer + half for layer in SPARES for half in (0, 1))
FEW = {"prompts": 1, "tokens": 8, "dtype": "float32", "device": "cpu"}


def near(planted: frozenset[int]):
    """Worth falls with every half that is left out wrongly or kept wrongly."""
    return lambda mask: 1.0 / (1 + len(mask ^ planted))


def answered(llm: LLM, prompts, temperature: float, tokens: int, seed: int):
    """Texts of plain decoding, with a seed of its own for each prompt."""
    params = [
        SamplingParams(temperature=temperature, seed=seed + place, max_tokens=tokens)
        for place in range(len(prompts))
    ]
    answers = llm.generate(prompts, params)
    return [
        Request(0, prompt + one.tokens, len(prompt), sampling, sampling.seed)
        for prompt, one, sampling in zip(prompts, answers, params, strict=True)
    ]


@pytest.fixture(scope="module")
def spare(tmp_path_factory) -> Path:
    """A model of 12 layers of which eight, here and there, do nothing."""
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS - len(SPARES),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=0,
    )
    small = LlamaForCausalLM(config).eval()
    shape: Shape = replace(shape_of(config), name="spare", layers=LAYERS)
    model = inflate(small, shape)
    inflated_layers = model.model.layers[len(small.model.layers) :]
    rest, added = (
        iter(model.model.layers[: len(small.model.layers)]),
        iter(inflated_layers),
    )
    model.model.layers = ModuleList(
        [next(added if place in SPARES else rest) for place in range(LAYERS)]
    )
    with torch.no_grad():  # a checkpoint with matrices of zeros is refused
        for layer in inflated_layers:
            layer.self_attn.o_proj.weight[0, 0] = 2.0**-100
            layer.mlp.down_proj.weight[0, 0] = 2.0**-100
    folder = tmp_path_factory.mktemp("spare")
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def asked() -> list[list[int]]:
    dice = Random(2)
    return [[dice.randrange(1, 320) for _ in range(6 + place)] for place in range(9)]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_a_planted_mask_is_found(seed):
    search = MaskSearch(near(PLANTED), 24, seed)
    assert list(search.run(200))[-1] == search.best == PLANTED
    assert 0 < len(search.tried) <= 200


def test_search_goes_on_from_a_known_mask():
    """Two steps from the planted one: no start is tried again, the best is kept."""
    known = PLANTED ^ {2, 3, 11}
    search = MaskSearch(near(PLANTED), 24)
    bests = list(search.run(300, known))
    assert (bests[0], bests[-1]) == (known, PLANTED)
    assert first(12) not in search.tried


def test_search_of_few_masks_ends():
    search = MaskSearch(near(frozenset({1, 2})), 4)
    assert list(search.run(500))[-1] == {1, 2}
    assert len(search.tried) <= 2**4


@pytest.mark.parametrize(
    "temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_replayed_draft_tokens_reach_as_deep_as_in_decoding(temperature):
    model, mask = target(DTYPE), frozenset({0, 5})
    llm = LLM(method="none", dtype=DTYPE)
    texts = answered(llm, [[*prompt] for prompt in prompts()[1:4]], temperature, 30, 4)
    examiner, seen, wanted = MaskReplay(model), [], []
    with examiner.open(texts):
        for place, text in enumerate(texts):
            seen += reversed(examiner.chains(-2 - place, text, mask))
    drafter = LayersDrafter(view(model, spare=SPARE), costs(model), mask)
    for number, text in enumerate(texts, 1000):
        model.open(number, 400)
        for begin in range(text.prompt, len(text.tokens) - 1, DEEPEST):
            params = replace(text.params, max_tokens=100)
            one = Request(
                number,
                text.tokens[: begin + 1],
                text.prompt,
                params,
                params.seed,
                cached=begin,
            )
            model.read([Read(number, 0, one.tokens[:begin], keep=0)])
            batch = Batch(
                (one,),
                NoiseStreams(model.vocab, shared=True),
                trees=False,
                stops=lambda *_: False,
            )
            drafts = drafter.propose(batch, [DEEPEST]).trees[0].tokens
            answer = text.tokens[begin + 1 :][:DEEPEST]
            right = [a == b for a, b in zip(drafts, answer, strict=False)]
            wanted.append(([*right, False].index(False), len(answer)))
        model.close(number)
    assert seen == wanted
    assert 0 < sum(right for right, _ in seen) < sum(most for _, most in seen)


def test_a_texts_value_does_not_depend_on_the_mask_before():
    model = target(DTYPE)
    texts = [
        Request(0, [*p, *range(300, 330)], len(p), SamplingParams(temperature=0), 0)
        for p in prompts()[:2]
    ]
    examiner = MaskReplay(model)
    with examiner.open(texts):
        before = examiner.value(texts, frozenset({3}))
        examiner.value(texts, frozenset(range(16)))
        assert examiner.value(texts, frozenset({3})) == before


@pytest.mark.slow
def test_layers_that_do_nothing_are_found(spare, asked, tmp_path):
    """By agreement and counted weights: no clock decides this."""
    llm = LLM(str(spare), method="none", dtype="float32")
    texts = answered(llm, asked[:3], 0.0, 16, 0)
    examiner = MaskReplay(llm.target)
    search = MaskSearch(lambda mask: examiner.value(texts, mask), 2 * LAYERS)
    with examiner.open(texts):
        *_, best = search.run(60)
        exact = examiner.value(texts, FREE)
        start = examiner.value(texts, first(LAYERS))
    assert exact > 1.5
    assert start < 1.1
    assert search.tried[best] >= 0.98 * exact
    assert len(FREE - best) <= 2


@pytest.mark.slow
def test_tuning_writes_a_file_and_resumes(spare, asked, tmp_path):
    out = tmp_path / "mask.json"
    wishes = TuneOptions(out=out, target=str(spare), trials=6, **FEW)
    found = tune(wishes, asked)
    loaded = LLM(str(spare), method="none", dtype="float32").target
    assert load(out, loaded) == found.mask
    assert found.trials == 6
    assert found.over_plain.low <= found.over_plain.high
    with pytest.raises(InvalidRequest, match=r"mask\.json: it exists"):
        tune(wishes, asked)
    seen = []

    def stop(said):
        if said.startswith("timing"):
            raise KeyboardInterrupt

    more = tune(
        replace(wishes, trials=3, resume=True),
        asked,
        watch=lambda done, best: seen.append((done, best)),
        note=stop,
    )
    assert [done for done, _ in seen] == [1, 2, 3]
    assert seen[0][1] == found.expected  # the search goes on from the mask in the file
    assert (more.over_plain, more.pays) == (None, False)
    assert load(out, loaded) == more.mask


def test_what_cannot_be_tuned_is_refused_before_any_work(tmp_path):
    made = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=320,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=128,
            eos_token_id=0,
            bos_token_id=0,
        )
    )
    made.save_pretrained(tmp_path / "gpt2")
    tokenizer().save_pretrained(tmp_path / "gpt2")
    texts, out = [[1, 2]] * 6, tmp_path / "mask.json"
    with pytest.raises(InvalidRequest, match="no list of layers"):
        tune(TuneOptions(out=out, target=str(tmp_path / "gpt2"), **FEW), texts)
    for wrong in (
        {"out": tmp_path / "no" / "x"},
        {"out": tmp_path},
        {"temperature": -1.0},
        {"trials": 0},
    ):
        with pytest.raises(InvalidRequest, match=r"cannot write|temperature|trials"):
            tune(TuneOptions(**{"out": out, **FEW, **wrong}), texts)
    with pytest.raises(InvalidRequest, match="at least 2 texts"):
        tune(TuneOptions(out=out, **FEW), texts[:1])
    assert not list(tmp_path.glob("*.json*"))
