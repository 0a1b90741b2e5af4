"""Training a draft for an encoder-decoder: the loss falls, the draft serves."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import tiny_seq2seq
import tiny_whisper
from asking import user
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model
from foreword_train.data.packing import Block, stack
from foreword_train.data.pairs import PairEncoder
from foreword_train.data.records import Record, read
from foreword_train.data.regenerate import Wishes, regenerate
from foreword_train.job import run
from foreword_train.losses import LOSSES
from foreword_train.methods import lm
from foreword_train.registry import DSparkOptions, LmOptions
from foreword_train.report.measure import Questions
from foreword_train.trainer import TrainingConfig
from pair import job
from trainables import context, pairs

FAMILIES = ["t5", "bart", "marian"]
START = {"t5": (0,), "bart": (2, 0), "marian": (319,)}
pytestmark = pytest.mark.filterwarnings("ignore:.* records to train on are few")
NOUNS = "river bridge window candle garden ladder winter mirror letter summer"
WORDS = tuple(NOUNS.split())


def task(name: str, **options) -> lm.Distillation:
    target = tiny_seq2seq.build(name)
    ends = dict(source=name, eos=frozenset({1}))
    beside = context(target, tiny_seq2seq.tokenizer(name), **ends)
    torch.manual_seed(1)
    draft = type(target)(lm.smaller_seq2seq(target.config, 1, 1, 32))
    return lm.Distillation(beside, LmOptions(**options), draft)


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_pairs_are_learnt_as_if_alone(name):
    some, one = pairs(START[name], (7, 5), (12, 3), (2, 9)), task(name)
    one.module.eval()
    block = stack([Block.of(some[:2], 40), Block.of(some[2:], 40)])
    together = one.loss(one.module, block)
    alone = torch.zeros(())
    for piece in some:
        at = piece.learnt.index(True) - len(START[name])
        source, text = torch.tensor([piece.tokens[:at]]), piece.tokens[at:-1]
        given = dict(input_ids=source, decoder_input_ids=torch.tensor([text]))
        logits = [model(**given).logits for model in (one.target, one.module)]
        answers = [part[0, len(START[name]) - 1 :] for part in logits]
        alone = alone + LOSSES["forward-kl"](*answers).sum()
    torch.testing.assert_close(together, alone)
    assert together > 1


def test_the_target_as_draft_is_always_accepted():
    one = task("t5")
    block = stack([Block.of(pairs(START["t5"], (7, 5), (3, 8)), 40)])
    with torch.no_grad():
        found = one.measure(one.target, block)
    expected = {"loss": 0, "acceptance": 13, "agreement": 13}
    numbers = {name: float(value) for name, value in found.items()}
    assert numbers == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_smaller_config_is_of_the_same_kind(name):
    large = tiny_seq2seq.build(name)
    sizes = dict(layers=1, encoder_layers=2, hidden=32)
    small = type(large)(lm.smaller_seq2seq(large.config, **sizes))
    layers = "block" if name == "t5" else "layers"
    assert len(getattr(small.get_decoder(), layers)) == 1
    assert len(getattr(small.get_encoder(), layers)) == 2
    assert small.get_input_embeddings().weight.shape == (tiny_seq2seq.VOCAB, 32)
    assert small.num_parameters() < large.num_parameters() / 2
    with pytest.raises(InvalidRequest, match="multiples of 16"):
        lm.smaller_seq2seq(large.config, 1, 1, 24)


@pytest.mark.parametrize("length", [64, 20])
def test_piece_is_the_input_of_the_served_decoder(length):
    tokenizer = tiny_seq2seq.tokenizer("bart")
    encode = PairEncoder(tokenizer, frozenset({2}), (2, 0), length)
    record = Record(turns=(("user", "turn this around"), ("assistant", "around this")))
    source = tokenizer("turn this around")["input_ids"]
    answer = [*tokenizer("around this")["input_ids"][:-1], 2]
    assert source[-1] == 2
    if length == 20:
        source, answer = source[:9], answer[:9]
    assert encode(record).tokens == [*source, 2, 0, *answer]
    assert encode(record).learnt == [False] * (len(source) + 2) + [True] * len(answer)
    begun = answer[:-1] if length > 20 else answer
    assert encode(replace(record, cut=True)).tokens == [*source, 2, 0, *begun]


@pytest.mark.parametrize(
    ("turns", "error"),
    [
        ((), "one answer to one source"),
        ((("assistant", "b"),), "one answer to one source"),
        ((("user", "a"), ("assistant", "b")) * 2, "one answer to one source"),
        ((("system", "a"), ("user", "b"), ("assistant", "c")), "no chat template"),
    ],
)
def test_other_records_are_refused(turns, error):
    encode = PairEncoder(tiny_seq2seq.tokenizer("t5"), frozenset({1}), (0,), 64)
    with pytest.raises(InvalidRequest, match=error):
        encode(Record(turns=turns, text="" if turns else "a text"))


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return tiny_seq2seq.saved("t5", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    sources = folder / "sources.jsonl"
    asked = [user(" ".join(pair)) for pair in product(WORDS, WORDS)]
    lines = [json.dumps({"messages": [one], "source": "words"}) for one in asked]
    sources.write_text("\n".join(lines))
    with LLM(target, method="none", slots=len(lines)) as llm:
        wishes = Wishes(max_tokens=16, temperature=0.5, batch=len(lines))
        records = read([sources], answered=False)
        tally = regenerate(llm, records, folder / "answers.jsonl", wishes)
        found = read([folder / "answers.jsonl"])
        params = SamplingParams(temperature=0.5, max_tokens=16, seed=64)
        (expected,) = llm.generate(f"{WORDS[0]} {WORDS[1]}", params)
    assert tally.records == len(lines)
    assert tally.tokens > 5 * len(lines)
    asked, answered = found[1].turns
    assert asked == ("user", f"{WORDS[0]} {WORDS[1]}")
    assert answered == ("assistant", expected.text)
    return folder / "answers.jsonl"


@pytest.fixture(scope="module")
def trained(target, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "draft"
    recipe = TrainingConfig(steps=60, batch=4, warmup=5, evaluate=30, save=60)
    whole = job(
        LmOptions(layers=1, hidden=32),
        target,
        data,
        out,
        held_out=10,
        questions=Questions(prompts=4, tokens=12, depth=3),
        recipe=replace(recipe, learning_rate=0.01),
    )
    rows = []
    return whole, run(whole, watch=rows.append), rows


def test_the_loss_falls_and_acceptance_rises(trained):
    _, report, rows = trained
    measured = [row.held_out for row in rows if row.held_out]
    assert measured[-1]["loss"] < measured[0]["loss"] - 0.05
    assert measured[-1]["acceptance"] > measured[0]["acceptance"] + 0.1
    assert {one.temperature for one in report.metrics} == {0.0, 1.0}
    written = json.loads((trained[0].out / "report.json").read_text())
    assert written["learnt"] == sum(row.tokens for row in rows)


def test_trained_draft_is_accepted_and_changes_no_token(trained, target):
    job, _, _ = trained
    fresh = Model(lm.new(target, layers=1, hidden=32, encoder_layers=1), "fresh")
    options = dict(temperature=1.0, max_tokens=24, ignore_eos=True)
    params = [SamplingParams(seed=seed, **options) for seed in range(6)]
    prompts = [f"{word} {word}" for word in WORDS[:6]]
    accepted, texts = [], []
    for draft in (None, fresh, job.out):
        method = "none" if draft is None else "lm"
        with LLM(target, draft=draft, method=method, nodes=3) as llm:
            answers = llm.generate(prompts, params)
        texts.append([answer.tokens for answer in answers])
        accepted.append(sum(answer.stats.accepted for answer in answers))
    assert texts[0] == texts[1] == texts[2]
    assert accepted[2] > accepted[1] + 5


def test_training_starts_from_a_draft_or_is_refused(trained, tmp_path):
    job, _, rows = trained
    recipe = TrainingConfig(steps=1, batch=1)
    again = replace(job, recipe=recipe, questions=Questions(prompts=0))
    again = replace(again, out=tmp_path / "on")
    seen = []
    run(replace(again, options=LmOptions(draft=str(job.out))), watch=seen.append)
    before, after = (one.held_out["acceptance"] for one in (rows[-1], seen[0]))
    assert after == pytest.approx(before, abs=0.01)
    options = LmOptions(hidden=32, on_policy=0.5)
    with pytest.raises(InvalidRequest, match="on_policy"):
        run(replace(again, options=options, out=tmp_path / "own"))
    with pytest.raises(ModelError, match="encoder-decoder"):
        run(replace(again, options=DSparkOptions(), out=tmp_path / "head"))
    speech = tiny_whisper.saved(tiny_whisper.build("v2"), "v2", tmp_path / "speech")
    with pytest.raises(InvalidRequest, match="it reads sound"):
        run(replace(again, target=str(speech), out=tmp_path / "sound"))
