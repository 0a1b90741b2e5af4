"""The recipe of the encoder-decoder: separate rows, operations, a resumed run."""

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5LayerNorm

from asking import assistant, user
from foreword import LLM, SamplingParams

FOLDER = Path(__file__).parents[2] / "recipes"
SMALL = {"d_model": 64, "d_ff": 64, "num_heads": 4, "d_kv": 16}


@pytest.fixture(scope="module")
def recipe():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("seq2seq")
        for name in ("seq2seq", "family", "pairs"):
            sys.modules.pop(name, None)


def texts(count: int, most: int) -> list[list[torch.Tensor]]:
    """Return random pairs of texts."""
    draw = torch.Generator().manual_seed(0)
    return [
        [torch.randint(9, 4000, (size,), generator=draw).int() for size in pair]
        for pair in torch.randint(2, most, (count, 2), generator=draw).tolist()
    ]


def test_packed_pairs_are_read_as_if_alone(recipe):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(recipe.bundled.target())
    training = recipe.PairTraining(tokenizer, 2)
    config = T5Config(vocab_size=8192, num_layers=2, **recipe.SIZES)
    plain = T5ForConditionalGeneration(config).eval()
    plain.load_state_dict(training.exact.state_dict())
    made = texts(3, 20)
    with torch.no_grad():
        hidden, right = training.read(recipe.Rows.of([made[:2], made[2:]], (64, 48)))
        expected = []
        for source, answer in made:
            begun = torch.tensor([[0, *answer[:-1].tolist()]])
            read = plain(input_ids=source[None].long(), decoder_input_ids=begun)
            expected.append(read.logits[0])
    assert right.tolist() == [token for _, answer in made for token in answer.tolist()]
    logits = hidden.float() @ plain.lm_head.weight.T
    wanted = torch.cat(expected)
    assert (logits - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_fast_operations_equal_those_of_torch(recipe):
    torch.manual_seed(0)
    exact = dict(dtype=torch.float64, requires_grad=True)
    query, key, value = (torch.randn(2, 4, 7, 8, **exact) for _ in range(3))
    position = torch.randn(1, 4, 7, 7, **exact)
    later = ~torch.ones(7, 7).tril().bool()
    bias = torch.zeros(2, 1, 7, 7, dtype=torch.float64).masked_fill_(later, -1e4)
    found = recipe.Attention.apply(query, key, value, position, bias)
    expected = ((query @ key.mT) + position + bias).softmax(-1) @ value
    weight = torch.randn_like(found)
    parts = (query, key, value, position)
    torch.testing.assert_close(found, expected)
    both = (found, expected)
    grads = [torch.autograd.grad((out * weight).sum(), parts) for out in both]
    torch.testing.assert_close(*grads)
    norm, hidden = T5LayerNorm(16), torch.randn(3, 5, 16, requires_grad=True)
    norm.weight = nn.Parameter(torch.randn(16))
    both = recipe.Norm.apply(hidden, norm.weight, norm.variance_epsilon), norm(hidden)
    torch.testing.assert_close(*both)
    weight = torch.randn(3, 5, 16)
    parts = (hidden, norm.weight)
    grads = [torch.autograd.grad((out * weight).sum(), parts) for out in both]
    torch.testing.assert_close(*grads)


def corpus(folder: Path, count: int) -> Path:
    file = folder / "pairs.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        for number in range(count):
            asked = f"Repeat: {number} is one more than {number - 1}."
            messages = [user(asked), assistant(f"{number} is one more.")]
            lines.write(json.dumps({"messages": messages, "source": "numbers"}) + "\n")
    return file


@pytest.mark.slow
def test_resumed_run_trains_a_draft(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "SIZES", recipe.SIZES | SMALL)
    monkeypatch.setattr(recipe, "ROWS", 512)
    monkeypatch.setattr(recipe.Schedule, "share", lambda schedule, step: 1.0)
    file = corpus(tmp_path, 600)
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    how = dict(pairs=file, held_out=file, forwards=1, rate=3e-3)
    how |= dict(measure=2, keep=2, layers=2)
    recipe.target(out=whole, steps=4, **how)
    recipe.target(out=halved, steps=2, **how)
    recipe.target(out=halved, steps=4, **how)
    logs = []
    for folder in (whole, halved):
        lines = (folder / "log.jsonl").read_text().splitlines()
        logs.append([json.loads(line)["loss"] for line in lines])
    assert logs[0] == logs[1]
    assert logs[0][-1] < logs[0][0]
    options = dict(pairs=file, out=whole, every=4, answered=30, steps=30, prompts=3)
    recipe.draft(**options)
    files = [whole / f"answers-{heat}.jsonl" for heat in (0, 1)]
    answers = [file.read_text().splitlines() for file in files]
    # empty answers are left out
    assert 8 <= len(answers[0]) <= 10 < 16 <= len(answers[1]) <= 20
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    prompts = [f"Repeat: {n} is one more than {n - 1}." for n in range(20, 28)]
    found = []
    for method, draft in (("none", None), ("lm", whole / "draft")):
        with LLM(whole / "target", draft=draft, method=method, nodes=3) as llm:
            found.append(llm.generate(prompts, params))
    assert [one.tokens for one in found[0]] == [one.tokens for one in found[1]]
    assert sum(one.stats.accepted for one in found[1]) > 0
    capsys.readouterr()
    recipe.draft(**options)  # all is there
    assert "step" not in capsys.readouterr().out
