"""The recipe of the family: separate records, backward passes, resumption."""

import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers as hf
from torch import nn

import starter
from folders import module_at
from foreword import LLM, SamplingParams, bundled
from tiny_sizes import sizes

SCRIPT = Path(__file__).parents[1] / "recipes" / "family.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return module_at(SCRIPT, "recipe_of_the_family")


def texts(count: int, longest: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(count)
    lengths = torch.randint(2, longest, (count,), generator=draw).tolist()
    return [
        torch.randint(1, 8192, (length,), generator=draw).tolist() for length in lengths
    ]


def test_every_record_is_dealt_once_and_whole(recipe):
    pieces = texts(3000, 400)
    dealt = list(recipe.dealt(pieces, 1))
    assert {rows.tokens.shape[1] for rows in dealt} == set(recipe.LENGTHS)
    assert all(rows.tokens.numel() == recipe.ROWS for rows in dealt)
    found: list[tuple[int, ...]] = []
    for rows in dealt:
        for row in range(len(rows.tokens)):
            for record in range(int(rows.record[row].max()) + 1):
                here = rows.record[row] == record
                assert rows.positions[row][here].tolist() == list(
                    range(int(here.sum()))
                )
                read = rows.tokens[row][here].tolist()
                after = rows.next[row][here].tolist()
                assert read[1:] == after[:-1]
                found.append((*read, after[-1]))
    assert len(set(found)) == len(found)
    assert set(found) <= set(map(tuple, pieces))
    # the last rows of an epoch do not fill a forward
    assert sum(map(len, found)) > 0.93 * sum(map(len, pieces))
    again, other = list(recipe.dealt(pieces, 1)), list(recipe.dealt(pieces, 2))
    assert torch.equal(again[0].tokens, dealt[0].tokens)
    assert other[0].tokens.shape != dealt[0].tokens.shape or not torch.equal(
        other[0].tokens, dealt[0].tokens
    )


def test_a_record_sees_its_own_past_alone(recipe):
    rows = recipe.Rows.of([[[5, 6, 7], [8, 9]], [[4, 3, 2, 1]]], 4)
    assert rows.tokens.tolist() == [[5, 6, 8, 0], [4, 3, 2, 0]]
    assert rows.next.tolist() == [[6, 7, 9, -1], [3, 2, 1, -1]]
    seen = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert (rows.bias[0, 0] == 0).int().tolist() == seen


def test_attention_is_torchs_forwards_and_backwards(recipe):
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 4, 7, 8, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    )
    bias = torch.zeros(2, 1, 7, 7, dtype=torch.float64).masked_fill_(
        ~torch.ones(7, 7).tril().bool(), -1e4
    )
    found = recipe.Attention.apply(query, key, value, bias, 0.3)
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, bias, scale=0.3
    )
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    grads = [
        torch.autograd.grad((out * weight).sum(), (query, key, value))
        for out in (found, expected)
    ]
    torch.testing.assert_close(*grads)


def test_the_loss_is_cross_entropy_and_so_is_its_gradient(recipe):
    torch.manual_seed(0)
    hidden = torch.randn(37, 16).bfloat16().requires_grad_()
    output = torch.randn(50, 16).bfloat16().float().requires_grad_()
    right = torch.randint(0, 50, (37,))
    found = recipe.CrossEntropy.apply(hidden, output, right, recipe._cross_entropy, 10)
    expected = nn.functional.cross_entropy(
        hidden.float() @ output.T, right, reduction="sum"
    )
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0.1)
    for mine, theirs in zip(
        torch.autograd.grad(3 * found, (hidden, output)),
        torch.autograd.grad(3 * expected, (hidden, output)),
        strict=True,
    ):
        assert (
            float((mine.float() - theirs.float()).norm() / theirs.float().norm()) < 0.02
        )


ROWS = 512
SMALL = sizes(64, 64, 2, 1, 2, head_dim=32)


def written(folder: Path, count: int) -> Path:
    """A corpus of so many records."""
    corpus = folder / "corpus.jsonl.gz"
    with gzip.open(corpus, "wt", encoding="utf-8") as lines:
        for number in range(count):
            said = [
                ("user", f"Count to {number}."),
                ("assistant", " ".join(map(str, range(number % 120 + 1)))),
            ]
            messages = [{"role": role, "content": content} for role, content in said]
            lines.write(json.dumps({"messages": messages}) + "\n")
    return corpus


@pytest.mark.slow
def test_a_run_goes_on_and_leaves_a_model(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "SIZES", recipe.SIZES | SMALL)
    monkeypatch.setattr(recipe, "ROWS", ROWS)
    corpus = written(tmp_path, 600)
    how = {
        "corpus": corpus,
        "held_out": corpus,
        "rate": 3e-3,
        "measure": 2,
        "keep": 2,
        "compiled": False,
    }
    before = torch.get_rng_state()
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    recipe.target(out=whole, steps=4, forwards=2, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            recipe.Schedule,
            "share",
            lambda schedule, step: min(1.0, step / 100, (4 - step + 1) / 1.2),
        )
        recipe.target(out=halved, steps=2, forwards=2, **how)
    recipe.target(out=halved, steps=4, forwards=2, **how)
    torch.set_rng_state(before)
    models = [
        hf.AutoModelForCausalLM.from_pretrained(folder / "target")
        for folder in (whole, halved)
    ]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert hf.AutoTokenizer.from_pretrained(whole / "target").chat_template
    assert (whole / "target" / "tokenizer.json").read_bytes() == (
        bundled.target() / "tokenizer.json"
    ).read_bytes()
    logs = [
        [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (whole, halved)
    ]
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]]
    assert logs[0][-1]["held_out"]["loss"] < logs[0][1]["held_out"]["loss"] < 9.5
    assert "held out" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.* records to train on are few")
@pytest.mark.slow
@pytest.mark.parametrize("names", [["draft"], ["eagle", "dspark", "medusa"]])
def test_drafters_learn_what_the_target_says(
    recipe, names, tmp_path, monkeypatch, capsys
):
    torch.manual_seed(0)
    plans = recipe.plans()
    assert sorted(plans) == ["draft", "dspark", "eagle", "medusa"]
    monkeypatch.setattr(recipe, "plans", lambda: {name: plans[name] for name in names})
    hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=8192, **recipe.SIZES | SMALL)
    ).save_pretrained(tmp_path / "target")
    hf.AutoTokenizer.from_pretrained(starter.target()).save_pretrained(
        tmp_path / "target"
    )
    asked = {
        "corpus": written(tmp_path, 90),
        "out": tmp_path,
        "every": 3,
        "greedy": 5,
        "steps": 2,
        "prompts": 3,
    }
    recipe.drafters(**asked)
    answers = [
        [
            json.loads(line)
            for line in (tmp_path / f"answers-{heat}.jsonl").read_text().splitlines()
        ]
        for heat in (0, 1)
    ]
    assert [len(some) for some in answers] == [6, 24]
    assert {one["by"]["temperature"] for some in answers for one in some} == {0.0, 1.0}
    params = SamplingParams(temperature=0, max_tokens=6)
    plain = LLM(tmp_path / "target", method="none").generate("Count", params)[0].tokens
    for name in names:
        assert (
            LLM(tmp_path / "target", draft=tmp_path / name, nodes=2)
            .generate("Count", params)[0]
            .tokens
            == plain
        )
    capsys.readouterr()
    recipe.drafters(**asked)  # all is there
    assert "step" not in capsys.readouterr().out
