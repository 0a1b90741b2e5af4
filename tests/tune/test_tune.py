"""The search for halves of layers to leave out: it finds what is there, forgets
nothing, measures rightly.
"""

import json
import sys
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
from foreword.tune.cost import LEAST, Prices, counted, credible, timed
from foreword.tune.journal import TrialsFile
from foreword.tune.replay import MaskReplay, Reach, Text, gain, written
from foreword.tune.run import TuneOptions, split_prompts, tune
from foreword.tune.search import MaskStudy
from foreword.types import Batch, Request
from foreword.types.params import SamplingParams
from running import prompts, target, tokenizer

DTYPE = "bfloat16"
PLANTED = frozenset({1, 4, 9, 10, 15, 20})
SPARES, LAYERS = frozenset({1, 2, 4, 5, 7, 8, 9, 11}), 12
FREE = frozenset(2 * layer + half for layer in SPARES for half in (0, 1))
FEW = {"prompts": 1, "tokens": 8, "dtype": "float32", "device": "cpu"}


def near(planted: frozenset[int]):
    """Worth falls with every half that is left out wrongly or kept wrongly; the same
    after every text.
    """
    return lambda mask: iter([1.0 / (1 + len(mask ^ planted))] * 5)


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
def test_a_planted_mask_is_found(tmp_path, seed):
    file = TrialsFile(tmp_path / "trials", {})
    assert MaskStudy(12, seed, file).run(near(PLANTED), 200)
    assert (file.best.mask, file.best.value) == (PLANTED, 1.0)


def test_trials_go_on_where_they_ended_and_none_is_lost(tmp_path):
    file, seen = TrialsFile(tmp_path / "trials", {"seed": 1}), []

    def stopped(mask):
        if len(seen) == 60:
            raise KeyboardInterrupt
        seen.append(mask)
        return near(PLANTED)(mask)

    assert not MaskStudy(12, 1, file).run(stopped, 100)
    before = [(one.mask, one.values) for one in file.tried]
    assert len(before) >= 60
    with file.path.open("a") as torn:
        torn.write('{"mask": [1, 2], "val')
    again = TrialsFile(file.path, {"seed": 1})
    assert [(one.mask, one.values) for one in again.tried] == before
    tried = []
    assert MaskStudy(12, 1, again).run(
        lambda mask: (tried.append(mask), near(PLANTED)(mask))[1], 150
    )
    assert len(again.tried) == 150
    assert not {mask for mask, _ in before} & set(tried)
    assert len(TrialsFile(file.path, {"seed": 1}).tried) == 150


def test_hopeless_masks_are_given_up_and_never_the_best(tmp_path):
    file, read = TrialsFile(tmp_path / "trials", {}), []

    def values(mask):
        for place in range(10):
            read.append(place)
            yield 5.0 if mask == {3} and place < 9 else near(PLANTED)(mask).__next__()

    MaskStudy(12, 0, file).run(values, 120)
    given_up = [one for one in file.tried if not one.whole]
    assert len(given_up) > 15
    assert all(len(one.values) < 10 for one in given_up)
    assert len(read) < 1100
    assert file.best.whole
    assert file.best.mask != {3}


def test_trials_about_something_else_are_refused(tmp_path):
    TrialsFile(tmp_path / "trials", {"seed": 1, "data": "a"})
    with pytest.raises(InvalidRequest, match="made with another data"):
        TrialsFile(tmp_path / "trials", {"seed": 1, "data": "b"})
    for text in ("", "no json\n", "[1]\n", '{"mask": []}\n'):
        (tmp_path / "other").write_text(text)
        with pytest.raises(InvalidRequest, match="holds no trials"):
            TrialsFile(tmp_path / "other", {})


def test_gain_is_that_of_the_best_length_at_its_price():
    reach = Reach()
    reach.add(
        [1, 2, 3, 4], [1, 2, 9, 4]
    )  # what follows a rejected draft token counts as rejected
    reach.add([1, 2], [1, 2])
    assert (reach.verified[:4], reach.accepted[:4]) == ([2, 2, 1, 1], [2, 2, 0, 0])
    checks = (1.0, 1.5, 1.5, *(2.0,) * (DEEPEST - 2))
    prices = Prices((0.25, 0.25), checks)
    assert gain(reach, prices, frozenset({0})) == pytest.approx(3 / (1.5 + 2 * 0.75))
    assert gain(reach, prices, frozenset({0, 1})) == pytest.approx(3 / (1.5 + 2 * 0.5))
    assert Prices((0.6, 0.6), checks).propose(frozenset({0, 1})) == LEAST


@pytest.mark.parametrize(
    "temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)]
)
def test_replayed_draft_tokens_reach_as_deep_as_in_decoding(temperature):
    model, mask = target(DTYPE), frozenset({0, 5})
    llm = LLM(method="none", dtype=DTYPE)
    texts = written(
        llm, [list(prompt) for prompt in prompts()[1:4]], temperature, 30, 4
    )
    examiner, seen = MaskReplay(model, texts), Reach()
    with examiner.open():
        for place, text in enumerate(texts):
            examiner._replay(-2 - place, text, mask, seen)
    drafter, wanted = (
        LayersDrafter(view(model, spare=SPARE), costs(model), mask),
        Reach(),
    )
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
            wanted.add(
                drafter.propose(batch, [DEEPEST]).trees[0].tokens,
                text.tokens[begin + 1 :],
            )
        model.close(number)
    assert (seen.accepted, seen.verified) == (wanted.accepted, wanted.verified)
    assert 0 < sum(seen.accepted) < sum(seen.verified)


def test_a_texts_value_does_not_depend_on_the_mask_before():
    model = target(DTYPE)
    texts = [
        Text(len(p), [*p, *range(300, 330)], SamplingParams(temperature=0))
        for p in prompts()[:2]
    ]
    examiner, prices = MaskReplay(model, texts), counted(model)
    with examiner.open():
        first = list(examiner.values(frozenset({3}), prices))
        list(examiner.values(frozenset(range(16)), prices))
        assert list(examiner.values(frozenset({3}), prices)) == first
        nothing = list(examiner.values(frozenset(), prices))
    assert len(first) == len(texts)
    assert len(nothing) == len(texts)


def test_halves_save_no_more_than_there_is():
    assert credible((0.02, 0.03), 0.1) == (0.02, 0.03)
    assert credible((0.3, 0.1), 0.1) == pytest.approx((0.075, 0.025))
    assert credible((-0.5, 0.05), 0.1) == (0.0, 0.05)
    assert credible((-0.5, -0.1), 0.1) == (0.0, 0.0)


@pytest.fixture
def briefly(monkeypatch):
    """Forwards are timed for less long than they should be."""
    monkeypatch.setattr("foreword.tune.cost.SECONDS", 0.5)


def test_prices_are_timed_on_the_model_itself(briefly):
    model = target(DTYPE)
    text = Text(
        len(prompts()[0]),
        [*prompts()[0], *range(300, 330)],
        SamplingParams(temperature=0),
    )
    examiner = MaskReplay(model, [text])
    with examiner.open():
        prices = timed(model, examiner.twin, examiner.sample)
    assert len(prices.halves) == 16
    assert len(prices.checks) == 1 + DEEPEST
    assert min(prices.checks) >= prices.checks[0] == 1
    assert 0 <= sum(prices.halves) <= 2


@pytest.mark.slow
def test_layers_that_do_nothing_are_found(spare, asked, tmp_path):
    """By agreement and counted weights: no clock decides this."""
    llm = LLM(str(spare), method="none", dtype="float32")
    examiner, prices = (
        MaskReplay(llm.target, written(llm, asked[:3], 0.0, 16, 0)),
        counted(llm.target),
    )
    file = TrialsFile(tmp_path / "trials", {})
    with examiner.open():
        MaskStudy(LAYERS, 0, file).run(lambda mask: examiner.values(mask, prices), 60)
        *_, exact = examiner.values(FREE, prices)
        *_, start = examiner.values(first(LAYERS), prices)
    assert exact > 1.5
    assert start < 1.1
    assert file.best.value >= 0.98 * exact
    assert len(FREE - file.best.mask) <= 2


@pytest.mark.slow
def test_tuning_writes_a_file_and_resumes(spare, asked, tmp_path, briefly):
    out = tmp_path / "mask.json"
    wishes = TuneOptions(out=out, target=str(spare), trials=6, **FEW)
    found = tune(wishes, asked)
    entries = found.runoff.entries
    assert {entry.budget for entry in entries} == {"adaptive", "confidence", "adaedl"}
    fastest = max(entries, key=lambda entry: entry.over_plain)
    assert (found.runoff.mask, found.runoff.budget) == (fastest.mask, fastest.budget)
    assert load(out) == found.mask == found.runoff.mask
    assert (
        LayersDrafter.load(
            out, LLM(str(spare), method="none", dtype="float32").target, None
        ).mask
        == found.mask
    )
    said = json.loads(json.dumps(found.as_json()))
    assert {name: said[name] for name in ("attention", "mlp")} == json.loads(
        out.read_text()
    )
    assert said["runoff"]["plain"] > 0
    with pytest.raises(InvalidRequest, match=r"mask\.json: it exists"):
        tune(wishes, asked)
    seen = []

    def stop(said):
        if said.startswith("timing"):
            raise KeyboardInterrupt

    more = tune(
        replace(wishes, trials=8, resume=True),
        asked,
        watch=lambda done, best: seen.append(done),
        note=stop,
    )
    assert seen == [6, 7, 8]
    assert more.prices == found.prices  # what was tried before stays comparable
    assert (more.runoff, more.pays) == (None, False)
    assert load(out) == more.mask
    with pytest.raises(InvalidRequest, match="made with another seed"):
        tune(replace(wishes, seed=1, resume=True), asked)


def test_hands_share_no_prompt():
    made = [[place] for place in range(10)]
    hands = split_prompts(made, 4, 0)
    assert [len(hand) for hand in hands] == [3, 3, 3]
    assert len({prompt[0] for hand in hands for prompt in hand}) == 9
    assert (
        split_prompts(made, 2, 0)
        == split_prompts(made, 2, 0)
        != split_prompts(made, 2, 1)
    )
    with pytest.raises(InvalidRequest, match="at least 3 texts, got 2"):
        split_prompts(made[:2], 4, 0)


def test_what_cannot_be_tuned_is_refused_before_any_work(tmp_path, monkeypatch):
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
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'foreword\[tune\]'"):
        tune(TuneOptions(out=out, **FEW), texts)
    assert not list(tmp_path.glob("*.json*"))
