"""Files with K-quants that are written: what the package gguf reads, and the text with
and without drafts.
"""

from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from foreword import LLM, bundled
from foreword.bench.peers.convert import source
from foreword.bench.peers.gguf import tensors, write
from foreword.model import load_tokenizer
from foreword.model.quantized.gguf_writing.mixtures import MIXTURES
from foreword.native import forward
from running import check_drafts

ROUTINE = "Q4_K_M"
"""The form of `make test`; the others are slow tests."""
EACH = [
    form if form == ROUTINE else pytest.param(form, marks=pytest.mark.slow)
    for form in MIXTURES
]
BYTE = 8.0
"""Bits a weight that is held as a byte, its scales apart."""


def written(folder: Path, path: Path, form: str) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    write(source("a model", model, load_tokenizer(folder)), path, form)
    return path


@pytest.fixture(scope="module", params=EACH)
def file(request, tmp_path_factory) -> Path:
    """The bundled draft model, whose rows are multiples of 256 weights."""
    folder = tmp_path_factory.mktemp("written")
    return written(bundled.draft(), folder / f"{request.param}.gguf", request.param)


def test_weights_by_the_package_are_near_the_given_ones(file):
    model = AutoModelForCausalLM.from_pretrained(bundled.draft(), dtype=torch.bfloat16)
    given = dict(tensors(model))
    read = gguf.GGUFReader(file)
    assert {tensor.name for tensor in read.tensors} == set(given)
    for tensor in read.tensors:
        weight = given[tensor.name].float()
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found = torch.from_numpy(numbers.copy()).view_as(weight)
        kind = tensor.tensor_type.name
        assert kind == "F32" if weight.dim() == 1 else kind.endswith("_K")
        assert (found - weight).norm() <= 0.3 * weight.norm()
    kind = read.fields["general.file_type"].contents()
    assert gguf.LlamaFileType(kind).name == f"MOSTLY_{file.stem}"


@pytest.mark.skipif(forward.reason() is not None, reason="no native kernel")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_leave_the_text_unchanged(file, temperature):
    llm = LLM(file, method="none")
    assert llm.target.capability.backend == "native"
    assert float(llm.target.weights.removesuffix(" bits")) < BYTE
    check_drafts(llm, "suffix", temperature, seed=3, tokens=40)
