"""The least time of a forward follows from the model's bytes and products, by form."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import starter
from foreword.model import Model
from foreword_lab.bench.roofline import roof
from foreword_lab.bench.roofline.limit import LimitOptions, limits
from foreword_lab.bench.roofline.passes import prompts
from foreword_lab.bench.roofline.roof import BYTES, SMALL, WHOLE, Roof, Work
from grids import NEEDS_C
from tiny_models import build

ROOF = Roof(
    weights=3000,
    keys=10,
    works=(Work(SMALL, 1000, 500), Work(WHOLE, 2000, 50, head=True)),
    attention=2,
    bandwidth=100.0,
    peaks={SMALL: 100.0, WHOLE: 10.0},
)


def test_bytes_decide_over_few_rows_and_products_over_many():
    assert ROOF.seconds(1, 0) == pytest.approx(10 + 20)
    assert ROOF.seconds(2, 0, kept=1) == pytest.approx(10 + 20 + 2 * 0.5 * 2 / 10)
    assert ROOF.seconds(8, 0, kept=0) == pytest.approx(40 + 8 * 3.5 * 2 / 10)
    assert ROOF.seconds(8, 0) == pytest.approx(40 + 40 + 8 * 3.5 * 2 / 10)


def test_keys_are_read_once_and_multiplied_by_each_row():
    assert ROOF.seconds(1, 40, kept=0) == pytest.approx(10 + 8)
    assert ROOF.seconds(4, 40, kept=0) == pytest.approx(20 + 4 * 41.5 * 2 / 10)


def test_bytes_decide_alone_where_instructions_are_unknown():
    assert Roof(3000, 10, bandwidth=100.0).seconds(64, 40) == pytest.approx(34)


def counted(form: str | None) -> tuple[dict[tuple[int, bool], Work], int, int]:
    """The works of the tests' draft model, and its weights: in layers, in the head."""
    hf = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.bfloat16)
    inside = sum(
        part.weight.numel()
        for name, part in hf.named_modules()
        if isinstance(part, nn.Linear) and name != "lm_head"
    )
    head, sizes = hf.lm_head.weight.numel(), roof.shapes(hf)
    model = Model(hf)
    model.quantize(form)
    found = roof.works(model, sizes)
    return {(work.form, work.head): work for work in found}, inside, head


@NEEDS_C
@pytest.mark.parametrize(
    ("given", "form", "bits"),
    [(None, WHOLE, 16.0), ("int8", BYTES, 8.0), ("int4", SMALL, 4.25)],
)
def test_works_are_those_of_the_matrices(given, form, bits):
    found, inside, head = counted(given)
    assert found.keys() == {(form, False), (form, True)}
    assert found[form, False].products == inside
    assert found[form, True].products == head
    for work in found.values():
        assert work.bytes * 8 / work.products == pytest.approx(bits, rel=0.07)


def test_models_that_rows_do_not_share_alike_have_no_works():
    assert roof.shapes(build("mixtral")) == []
    assert roof.works(Model(build("llama")), []) == ()


def test_attention_multiplies_keys_and_values():
    config = build("llama").config
    heads = config.num_attention_heads * config.head_dim
    assert roof.attention(build("llama")) == 2 * config.num_hidden_layers * heads


@NEEDS_C
def test_every_form_has_a_peak():
    assert all(roof.peak(form) > 0 for form in range(4))


@NEEDS_C
def test_a_prompt_is_read_in_chunks_and_compared_with_its_floor(monkeypatch):
    monkeypatch.setattr("foreword_lab.bench.roofline.passes.CHUNK", 16)
    model = Model(build("llama"))
    (one,) = prompts(model, ROOF, [40])
    least = [ROOF.seconds(16, 0, 0), ROOF.seconds(16, 16, 0), ROOF.seconds(8, 32, 1)]
    assert one.share_of_floor == pytest.approx(1e3 * sum(least) / one.ms.mid)
    assert one.as_json()["tokens_per_second"] == pytest.approx(40e3 / one.ms.mid)


@NEEDS_C
def test_few_bits_and_several_contexts_are_measured(monkeypatch):
    monkeypatch.setattr("foreword_lab.bench.roofline.limit.QUICK_SECONDS", 0.0)
    short, long = limits(
        LimitOptions(
            shapes=("family",),
            target=str(starter.draft()),
            weights="int4",
            dtype="bfloat16",
            contexts=(20, 60),
            prompts=(30,),
            quick=True,
        )
    )
    assert {short.shape, long.shape} == {f"{starter.draft().name} in int4"}
    assert (short.context, long.context) == (20, 60)
    assert long.keys == 3 * short.keys
    assert [one.size for one in short.prompts] == [30]
    assert long.prompts == ()
    written = short.as_json()
    assert written["peaks_gmac_s"].keys() == {"bfloat16", "small levels"}
    assert sum(work["bytes"] for work in written["works"]) == short.roof.weights
    assert short.rows[0].share_of_floor > 0
