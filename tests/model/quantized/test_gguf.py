"""Each type of a GGUF tensor is read exactly as by the package gguf."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import gguf_files
from foreword import files
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.native import grouped
from foreword.model.executors.native.executor import lay_words
from foreword.model.loading import verdicts
from foreword.model.quantized.coded import Matrix
from foreword.model.quantized.gguf import FLOATS, KINDS, coded
from foreword.native import forward
from grids import NEEDS_C

ROWS, DEPTH = 24, 512


def empty(size: int, _: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def blocks(kind: str, rows: int = ROWS, depth: int = DEPTH) -> np.ndarray:
    """(rows, bytes) of valid blocks: random bits, but for finite float16."""
    type_ = gguf.GGMLQuantizationType[kind]
    each, size = gguf.GGML_QUANT_SIZES[type_]
    data = np.random.default_rng(7).integers(
        0, 256, (rows, depth // each, size), dtype=np.uint8
    )
    for at in HALVES[kind]:
        data[..., at + 1] &= 0xBF  # no exponent of ones: neither infinite nor NaN
    if kind == "MXFP4":
        data[..., 0] %= 250  # an exponent whose largest multiple is finite
    return data.reshape(rows, -1)


HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
"""Bytes at which a block of each type holds a float16."""


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_gguf_bit_for_bit(kind):
    data = blocks(kind)
    read = coded("some.weight", kind, torch.from_numpy(data))
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.isfinite(expected).all()
    assert torch.equal(read.dense(), torch.from_numpy(expected))
    assert read.codes.shape == (ROWS, DEPTH)
    assert int(read.codes.max()) < len(read.levels)


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("kind", forward.BLOCKS)
def test_strips_made_in_c_are_those_of_the_codes(kind, in_turns, monkeypatch):
    data = torch.from_numpy(blocks(kind)).repeat(2, 1)[: 32 if in_turns else 20]
    whole = coded("some.weight", kind, data)
    monkeypatch.setattr(grouped, "PART", 16 * DEPTH)
    parts = [Matrix(lambda: whole, whole.codes.shape, lambda found: found)]
    expected = grouped.packed_parts(parts, empty, in_turns=in_turns)
    calls = []

    def raw(rows: slice) -> tuple[str, torch.Tensor]:
        calls.append(rows)
        return kind, data[rows]

    parts = [replace(parts[0], part=whole.rows, blocks=raw)]
    found = grouped.packed_parts(parts, empty, in_turns=in_turns)
    assert len(calls) > len(data) // 16
    assert torch.equal(found, expected)
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(parts[0].weights(dtype), whole.dense().to(dtype))


def with_embeddings(kind: str, path: Path, *, tied: bool) -> Path:
    """Write mixed.gguf with such embeddings, the LM head too if `tied`."""
    read = gguf.GGUFReader(Path(__file__).with_name("mixed.gguf"))
    writer = gguf.GGUFWriter(path, "llama")
    gguf_files.copy_fields(read, writer, {})
    for tensor in read.tensors:
        data, type_ = tensor.data, tensor.tensor_type
        if tensor.name == "token_embd.weight":
            data, type_ = blocks(kind, 256, 256), gguf.GGMLQuantizationType[kind]
        if not tied or tensor.name != "output.weight":
            writer.add_tensor(tensor.name, data, raw_dtype=type_)
    gguf_files.finish(writer)
    return path


@NEEDS_C
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [*forward.BLOCKS, "Q2_K"])
def test_embeddings_are_read_from_the_file(kind, tied, tmp_path, monkeypatch):
    path = with_embeddings(kind, tmp_path / "model.gguf", tied=tied)
    every, count = torch.arange(256).view(2, 128), 256 * 256
    whole = coded("token_embd", kind, torch.from_numpy(blocks(kind, 256, 256)))
    expected = whole.dense().bfloat16().view(2, 128, 256)
    scores = []
    monkeypatch.setattr(verdicts, "LARGE", 0)
    monkeypatch.setattr(files, "cache", lambda: tmp_path)
    folder = dict(offload_folder=tmp_path / "weights")
    # the first load probes the whole model; the last one holds embeddings in 16 bits
    for number, options in enumerate(({}, {}, folder, folder, {})):
        if number == 4:
            monkeypatch.setattr(forward, "BLOCKS", ())
        model = Model.load(path, device="cpu", backend="native", **options)
        with model.backend.lend():
            assert torch.equal(model.hf.get_input_embeddings()(every), expected)
        assert torch.equal(model.embed(every), expected)
        memory = [*model.backend.matrices.held, *model.hf.parameters()]
        sizes = [one.numel() for one in memory if one.dtype == torch.bfloat16]
        assert (max(sizes) >= count) is (kind not in forward.BLOCKS)
        head = forward.Model()
        lay_words(head, model.hf.get_input_embeddings(), model.backend)
        for name in ("table", "table_kind") if not head.embedding else ():
            assert getattr(head, name) == getattr(model.backend.model, name)
        model.open(1, 300)
        scores.append(model.read([Read(1, 0, list(range(256)), keep=256)]))
    assert all(torch.equal(one, scores[0]) for one in scores)


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_block_is_that_of_gguf(kind):
    assert KINDS[kind][1] == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_weights_that_gguf_quantized_are_near_the_given_ones(kind):
    given = torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(3))
    data = gguf.quants.quantize(given.numpy(), gguf.GGMLQuantizationType[kind])
    read = coded("some.weight", kind, torch.from_numpy(data)).dense()
    assert 0 < (read - given).square().mean() < 0.03


@pytest.mark.parametrize("kind", FLOATS)
def test_numbers_have_no_codes(kind):
    assert coded("some.weight", kind, torch.zeros(2, 64, dtype=torch.uint8)) is None


def test_another_type_is_refused_with_the_name_of_the_tensor():
    with pytest.raises(ModelError, match=r"some\.weight: its type IQ2_XXS .*Q4_K_M"):
        coded("some.weight", "IQ2_XXS", torch.zeros(2, 66, dtype=torch.uint8))
