"""A head inflated with its target proposes the same draft tokens as before."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig

import starter
from foreword import bundled
from foreword.draft import method
from foreword.draft.heads.eagle_published import load
from foreword.errors import ModelError
from foreword.model import Model
from foreword_lab.bench.inflate.heads import inflate_head
from foreword_lab.bench.inflate.model import Shape, inflate, shape_of
from foreword_train import registry
from grids import slow_case
from running import Case, engine, finish, of_length, prompts, shelf, target, tokenizer

WIDE = Shape(
    "wide", hidden=448, layers=9, heads=8, kv_heads=4, head_dim=64, intermediate=1088
)
TRAIN_OPTIONS = (
    registry.EagleOptions(unroll=2, draft_vocab=400),
    registry.DSparkOptions(layers=1, block=4, anchors=24, rank=16),
    registry.DFlashOptions(layers=1, block=5, anchors=24),
    registry.MedusaOptions(),
    registry.MtpOptions(unroll=2),
    registry.MedusaOptions(heads=2, own=True),
)


@pytest.fixture(scope="module")
def original():
    return AutoModelForCausalLM.from_pretrained(
        starter.target(), dtype=torch.float32, local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def large(original) -> Model:
    return Model(inflate(copy.deepcopy(original), WIDE), "wide")


@pytest.mark.parametrize(
    "options", [*TRAIN_OPTIONS[:1], *(slow_case(one) for one in TRAIN_OPTIONS[1:])]
)
def test_same_draft_tokens_are_accepted(options, original, large, tmp_path):
    inflate_head(shelf(options), shape_of(original.config), WIDE).write(tmp_path)
    counts = []
    for model, source in ((target(), shelf(options)), (large, tmp_path)):
        drafter = method(options.method).load(source, model, tokenizer())
        loop = engine(model, drafter, 6)
        requests = [
            Case(prompt, of_length(12, heat, seed=5))
            for prompt, heat in zip(prompts(), (0.0, 1.0, 0.0, 1.0, 0.5), strict=True)
        ]
        answers = finish(loop, requests)
        assert loop.failed is None
        counts.append(
            [
                (answer.tokens, [delta.origins for delta in answer.deltas])
                for answer in answers
            ]
        )
    assert counts[0] == counts[1]
    assert any("accepted" in origins for _, rounds in counts[0] for origins in rounds)


def test_logits_of_the_head_are_the_same(original, large, tmp_path):
    """Draft tokens alone would not show norms that are a tenth too strong."""
    inflate_head(shelf(TRAIN_OPTIONS[0]), shape_of(original.config), WIDE).write(
        tmp_path
    )
    head = load(shelf(TRAIN_OPTIONS[0]), original.config)
    heads = (head, load(tmp_path, large.hf.config))
    torch.manual_seed(0)
    # so small that eps counts
    embedded, states = torch.randn(1, 1, 384), 1e-3 * torch.randn(1, 1, 3, 384)

    def alone(q, k, v):
        """Attention of a row to itself only."""
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(1, 2)

    found = []
    with torch.no_grad():
        for head, room in zip(heads, (0, 448 - 384), strict=True):
            given = head.fc(F.pad(states, (0, room)).flatten(-2))
            hidden = head.float()(
                F.pad(embedded, (0, room)), given, torch.tensor([[3]]), alone
            )
            found.append(head.logits(hidden))
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


def test_head_of_other_sizes_is_refused(tmp_path):
    sizes = shape_of(LlamaConfig.from_pretrained(bundled.target()))
    found = bundled.head("dspark")
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((found / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    for wrong, words in (
        (config | {"intermediate_size": 999}, "intermediate_size are not the target's"),
        ({"transformer_layer_config": config}, "must name hidden_size"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=words):
            inflate_head(tmp_path, sizes, WIDE)
