"""Other engines hold a target of few bits in as many bits, multiply by its codes, and
say so in the report.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
from foreword.bench.lineup import SPECIAL, convertible_draft, weights
from foreword.bench.peers import engines, gguf, llamacpp, registry
from foreword.bench.peers.convert import INT4, INT8, Source, source
from foreword.bench.peers.engines import ENGINES, GENERATE, MODES
from foreword.bench.peers.openvino_graph import BITS, GROUP, graph, quantized
from foreword.bench.peers.registry import Pair
from foreword.bench.prompts import load
from foreword.bench.records import BenchRequest
from foreword.bench.run import Options, rendered, run, spread
from foreword.model import load_tokenizer
from foreword.native import forward

TOKENS = 24
TOKENIZER = load_tokenizer(starter.target())
FORMS = (INT8, INT4)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("peers")))
        yield


def loaded(form: str | None, folder: Path) -> Source:
    """Return a model to be held in `form`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return source("the model", model, load_tokenizer(folder), form)


@pytest.mark.parametrize("form", FORMS)
def test_codes_are_off_by_half_a_step_at_most(form):
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(0))
    weight[2] = 0
    size = 128 if form == INT4 else 256
    codes, scales = quantized(weight, size, BITS[form])
    assert codes.shape == ((6, 2, 128) if form == INT4 else (6, 256))
    assert -(2 ** (BITS[form] - 1)) == codes.min()
    assert codes.max() <= 2 ** (BITS[form] - 1) - 1
    off = (codes * scales.float()).reshape_as(weight) - weight
    step = scales.float().abs().expand(codes.shape).reshape_as(weight)
    # the end opposite to the largest has one level less
    assert ((off / step).abs() <= 1.01).all()
    assert ((off / step).abs() <= 0.51).float().mean() > 0.98
    largest = weight[0, :size].abs().argmax()
    assert codes.reshape(6, -1)[0, largest] == -(2 ** (BITS[form] - 1))
    assert not codes[2].any()


def rounded(model: Any, form: str) -> Any:
    """The model with the numbers that the codes stand for."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            inner = form == INT4 and "layers" in name
            size = int(np.gcd(GROUP, weight.shape[1])) if inner else weight.shape[1]
            codes, scales = quantized(
                weight.detach(), size, BITS[INT4 if inner else INT8]
            )
            weight.data = (codes * scales.float()).reshape_as(weight)
    return model


@pytest.mark.parametrize("form", FORMS)
def test_openvino_multiplies_codes_as_the_rounded_model_does(form):
    ov = pytest.importorskip("openvino")
    target = loaded(form, starter.target())
    exact = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    compiled = ov.Core().compile_model(graph(target.model, form), "CPU", exact)
    ids = np.array([TOKENIZER("How many legs have 3 spiders?")["input_ids"]])
    given = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(ids.shape[1])[None],
    }
    found = compiled.create_infer_request().infer(
        {**given, "beam_idx": np.zeros(1, dtype=np.int32)}
    )["logits"]
    with torch.no_grad():
        wanted = rounded(target.model, form)(torch.tensor(ids)).logits
    torch.testing.assert_close(torch.tensor(found.copy()), wanted, rtol=0, atol=2e-3)
    info = [
        node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()
    ]
    kinds = [
        str(one["runtimePrecision"].value)
        for one in info
        if one["layerType"].value == "FullyConnected"
    ]
    assert {*kinds} == ({"i8"} if form == INT8 else {"i4", "i8"})
    assert form == INT8 or kinds.count("i8") == 1  # the LM head


def matrices(file: Path) -> set[str]:
    """Names of the types of a file's matrices."""
    reader: Any = pytest.importorskip("gguf").GGUFReader(file)
    return {one.tensor_type.name for one in reader.tensors if len(one.shape) == 2}


def test_llamacpp_gets_a_file_of_as_many_bits(small):
    pytest.importorskip("gguf")
    files = {form: llamacpp.file(loaded(form, small), print) for form in (None, *FORMS)}
    assert {form: matrices(file) for form, file in files.items()} == {
        None: {"F32"},
        INT8: {"Q8_0"},
        INT4: {"Q4_0"},
    }


def test_gguf_target_is_read_from_its_own_file(small, tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    model = loaded(None, small)
    for kind, form in (("Q4_0", INT4), ("Q5_0", INT4), ("Q8_0", INT8), (None, None)):
        file = tmp_path / f"{kind}.gguf"
        gguf.write(model, file, kind)
        given = weights(str(file), str(small), "bfloat16", None)
        target = given.convertible(given.load(), given.tokenizer(given.target))
        assert (target.file, target.form) == (file, form)
        assert llamacpp.file(target, pytest.fail) == file
        draft = convertible_draft(given)  # OpenVINO refuses a pair with two tokenizers
        assert draft.spelling == target.spelling
        assert all(
            getattr(draft.model.config, name) == getattr(target.model.config, name)
            for name in SPECIAL
        )
        held = given.held(
            ("llamacpp.generate", "openvino.generate", "transformers.generate")
        )
        assert held["foreword"] == held["llamacpp"] == file.name
        assert held["openvino"].startswith(form or "bfloat16")
        assert held["openvino"].endswith(", of dequantized weights")
        assert held["transformers"] == "bfloat16, of dequantized weights"
        assert weights(str(file), None, "bfloat16", "llama-110m").file is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_texts_are_about_those_of_the_rounded_model(engine, form):
    for module in ENGINES[engine].modules:
        pytest.importorskip(module)
    target = loaded(form, starter.target())
    pair = Pair(lambda: target, lambda: loaded(None, starter.draft()), print)
    prompts = spread(load("in-domain"), 4)
    requests = [
        BenchRequest(
            p.id,
            rendered(p, TOKENIZER, 1024, Options(max_tokens=TOKENS)),
            0.0,
            place,
            TOKENS,
        )
        for place, p in enumerate(prompts)
    ]
    entries = {mode: registry.make(f"{engine}.{mode}", pair) for mode in MODES}
    answers = {
        mode: [one.run(request) for request in requests]
        for mode, one in entries.items()
    }
    plain = answers[GENERATE]
    for mode, trials in answers.items():
        alike = [
            np.cumprod(
                [x == y for x, y in zip(one.tokens, two.tokens, strict=False)]
            ).sum()
            for one, two in zip(trials, plain, strict=True)
        ]
        written = sum(len(one.tokens) for one in trials)
        assert sum(alike) > 0.6 * written
        passes = sum(one.passes or 0 for one in trials)
        assert passes == written if mode == GENERATE else passes < 0.9 * written


@pytest.mark.skipif(
    forward.reason() is not None, reason=f"no native kernel here: {forward.reason()}"
)
def test_report_names_the_form_of_the_weights():
    few = Options(
        target=str(starter.draft()),
        draft=str(starter.draft()),
        limit_prompts=1,
        max_tokens=4,
        methods=("none",),
        temperatures=(0.0,),
        dtype="bfloat16",
    )
    report = run(few)
    assert report.settings["held"] == dict.fromkeys(
        ("foreword", "transformers", "draft models of other engines"), "bfloat16"
    )
    assert "weights:" not in str(report.table().caption)
    given = weights(None, None, "bfloat16", None)
    assert given.held(engines.NAMES)["llamacpp"] == "bfloat16"
    report = run(Options(**{**vars(few), "weights": INT4}))
    assert (
        json.loads(json.dumps(report.as_json()))["settings"]["held"]["foreword"] == INT4
    )
    line = (
        "weights: foreword int4; transformers bfloat16; draft models of other engines "
        "bfloat16"
    )
    assert line in str(report.table().caption)
