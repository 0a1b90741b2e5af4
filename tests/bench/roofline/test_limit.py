"""Forwards against the memory bandwidth: bytes of the model, shares, and times."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import starter
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model
from foreword.model.cost import Cost
from foreword.model.executors.cuda.backend import CudaGraphBackend
from foreword_lab.bench.inflate.model import SHAPES, shape_of
from foreword_lab.bench.roofline.limit import (
    NODES,
    Limit,
    LimitOptions,
    limit,
    limits,
    table,
)
from foreword_lab.bench.roofline.passes import LARGE, SMALL, Pass, shape_price
from foreword_lab.bench.roofline.roof import Roof
from foreword_train.report.interval import Interval
from tiny_models import build


def measured(target: Path, **changes) -> Limit:
    """Return the limit of a model at its own size, after the fewest turns."""
    options = LimitOptions(
        shapes=("family",),
        contexts=(30,),
        prompts=(20, 40),
        quick=True,
        target=str(target),
        dtype="float32",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foreword_lab.bench.roofline.limit.QUICK_SECONDS", 0.0)
        (one,) = limits(replace(options, **changes))
    return one


@pytest.fixture(scope="module")
def found() -> Limit:
    """The limit of a model whose embedding is tied, with batches."""
    return measured(starter.draft(), batches=(1, 4))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The folder of a model whose embedding is not tied."""
    folder = tmp_path_factory.mktemp("tiny")
    build("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def untied(tiny) -> Limit:
    return measured(tiny)


@pytest.fixture
def invented() -> Limit:
    beside = (Pass("batch", 16, Interval(5.0, 6.0, 7.0), 0.3, 3.0),)
    rows = (
        Pass("nodes", 1, Interval(1.0, 2.0, 3.0), 0.5, 1.0, 2.2),
        Pass("nodes", 8, Interval(3.0, 4.0, 5.0), 0.25, 2.0, 3.0),
    )
    roof = Roof(900, 10, bandwidth=1e6)
    return Limit("invented", "native", 10, roof, rows=rows, batches=beside)


def test_bytes_are_those_of_weights_and_keys(found):
    weights = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.float32)
    config = weights.config
    # its embedding is its LM head too
    assert found.roof.weights == 4 * weights.num_parameters()
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    assert found.keys == 30 * 2 * 4 * layers * heads * config.head_dim
    assert found.bytes == found.roof.weights + found.keys


def test_untied_embedding_is_not_read_by_a_pass(untied):
    llama = build("llama")
    assert untied.roof.weights == 4 * (
        llama.num_parameters() - llama.get_input_embeddings().weight.numel()
    )


def test_enlarged_model_has_a_longer_context(monkeypatch, tiny):
    llama = build("llama")
    same = shape_of(cast("LlamaConfig", llama.config))
    monkeypatch.setitem(
        SHAPES, "tiny", replace(same, name="tiny", layers=same.layers + 1)
    )
    context = 2 * llama.config.max_position_embeddings
    one = measured(tiny, shapes=("tiny",), contexts=(context,))
    assert (one.context, [row.size for row in one.rows]) == (context, list(NODES))
    assert (
        one.keys == context * 2 * 4 * (same.layers + 1) * same.kv_heads * same.head_dim
    )
    with pytest.raises(ModelError, match="Lower 'context'"):
        measured(tiny, contexts=(context,))


def test_shares_follow_from_bytes_bandwidth_and_times(found):
    assert [row.size for row in found.rows] == list(NODES)
    for row in found.rows:
        assert row.share_of_floor == pytest.approx(
            1e3 * found.bytes / found.roof.bandwidth / row.ms.mid
        )
        assert row.ms.low <= row.ms.mid <= row.ms.high
        assert row.predicted_ms > 0
    assert found.rows[0].cost_over_one == 1.0
    # 64 tokens in float32 are products, whatever the machine
    assert found.rows[-1].cost_over_one > 1.0


def test_a_batch_reads_the_weights_once_and_all_keys(found):
    assert [one.size for one in found.batches] == [1, 4]
    one, four = found.batches
    assert one.cost_over_one == 1.0
    bytes_a_second = [
        (found.roof.weights + beside.size * found.keys)
        / (beside.share_of_floor * beside.ms.mid)
        for beside in (one, four)
    ]
    assert bytes_a_second[0] == pytest.approx(bytes_a_second[1])
    assert found.as_json()["batches"][1]["batch"] == 4
    assert found.as_json()["device"] == "cpu"


def test_no_batches_are_measured_by_default_on_a_cpu(untied):
    assert untied.batches == ()


def test_json_has_every_figure(found):
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert {"bandwidth_gb_s", "shape", "bytes", "rows"} <= set(written)
    assert all(
        {"nodes", "ms", "share_of_floor", "cost_over_one"} <= set(row)
        for row in written["rows"]
    )
    assert written["bytes"] == found.bytes
    assert written["bandwidth_gb_s"] == pytest.approx(found.roof.bandwidth / 1e9)


def test_floor_and_deviation_follow_from_the_figures(invented):
    assert invented.floor == pytest.approx(1e-3)
    assert invented.off == pytest.approx(0.25)


def test_table_has_a_line_for_every_pass(invented, printed):
    shown = printed(table([invented]), 160)
    for text in ("2.00×", "50%", "1 of 16", "floor is 1.00 ms"):
        assert text in shown


def test_prediction_ignores_an_old_cost_table():
    model = Model(build("llama"))
    model._cost = Cost({1: 1000.0}, context=16)
    assert all(row.predicted_ms < 1e5 for row in limit(model, Roof(1, 1), 20, 0.0).rows)


def test_bad_options_are_refused():
    with pytest.raises(
        InvalidRequest, match=r"no such shape\. Choose from family, llama-110m"
    ):
        limits(LimitOptions(shapes=("llama-2t",)))
    with pytest.raises(ModelError, match="cannot use device 'cuda:77'"):
        limits(LimitOptions(device="cuda:77"))
    with pytest.raises(InvalidRequest, match="at least 1"):
        limits(LimitOptions(shapes=("family",), contexts=(0,)))
    with pytest.raises(ModelError, match="Lower 'context'"):
        limit(Model(build("llama")), Roof(1, 1), 250, 0.0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_model_without_rollback_is_refused():
    with pytest.raises(ModelError, match="cannot go back"):
        limit(Model(build("mamba")), Roof(1, 1), 20, 0.0)


def test_price_of_one_shape_is_measured_on_the_graph_backend(invented, monkeypatch):
    model, rows = Model(build("llama")), []
    work = CudaGraphBackend._work
    monkeypatch.setattr(
        CudaGraphBackend,
        "_work",
        lambda backend, shape: rows.append(shape.rows) or work(backend, shape),
    )
    model.context = LARGE
    assert shape_price(model, 0.0) is None
    model.backend = CudaGraphBackend(model.hf, lambda work: work, kernel=False)
    price = shape_price(model, 0.0)
    assert price is not None
    assert min(price) > 0
    # once to record, then three turns: a token and 512 of a prompt
    assert Counter(rows) == {64: 4 * 9, SMALL: 4, LARGE: 4}
    (line,) = table([replace(invented, price=(1.05, 1.9))]).caption.splitlines()
    assert "1.05 times a forward over 16 rows, and a prompt 1.90 times" in line
    assert "one shape" not in table([invented]).caption
