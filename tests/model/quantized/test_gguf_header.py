"""Lengths in a GGUF header are compared with the file before any allocation."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_files
from foreword.errors import ModelError
from foreword.model import Model
from foreword.model.quantized import gguf_header

MIXED = Path(__file__).parent / "mixed.gguf"
"""A file of llama-quantize, with matrices of several types."""
UINT8, STRING, ARRAY, UINT64 = 0, 8, 9, 10
Q8_0 = 8
"""Type of a tensor in blocks of 32 numbers."""
HUGE = 100_000
"""Entries. Enough to see that they were read, few enough to read them all."""
ROOM = 4 * 2**20
"""Bytes held while such a file is refused; HUGE entries take 10 times as many."""


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(*fields: bytes, tensors: bytes = b"", count: int = 0) -> bytes:
    architecture = (
        text("general.architecture") + struct.pack("<I", STRING) + text("llama")
    )
    whole = (architecture, *fields)
    return (
        b"GGUF" + struct.pack("<IQQ", 3, count, len(whole)) + b"".join(whole) + tensors
    )


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    head = struct.pack("<IIQ", ARRAY, kind, count)
    return text("tokenizer.ggml.tokens") + head + content


def tensor(sizes: list[int], offset: int) -> bytes:
    about = struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset)
    return text("token_embd.weight") + about


def refused(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelError, match=f"complete GGUF file: {reason}.*again"):
        Model.load(path)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < ROOM


def test_fields_and_tensors_are_those_of_the_package_gguf():
    theirs = gguf.GGUFReader(MIXED)
    ours = gguf_header.Header(MIXED)
    fields = {name: field.contents() for name, field in theirs.fields.items()}
    fields = {name: one for name, one in fields.items() if name[:5] != "GGUF."}
    assert {name: ours.field(name) for name in ours.fields} == fields
    for our, their in zip(ours.tensors, theirs.tensors, strict=True):
        assert (our.name, our.kind) == (their.name, their.tensor_type.name)
        assert our.shape == tuple(their.shape)
        assert np.array_equal(our.data, their.data)


@pytest.mark.parametrize(
    ("kind", "content"),
    [(UINT8, b""), (STRING, text("a")), (ARRAY, b""), (UINT64, bytes(80))],
)
def test_array_beyond_the_file_is_refused_before_it_is_read(tmp_path, kind, content):
    refused(
        tmp_path / "a.gguf", header(array(kind, HUGE, content)), "an array ends at byte"
    )


def test_text_beyond_the_file_is_refused(tmp_path):
    field = text("general.name") + struct.pack("<IQ", STRING, 2**62)
    refused(tmp_path / "a.gguf", header(field), "its header ends at byte")


@pytest.mark.parametrize("sizes", [[HUGE, HUGE], [2**32, 2**32], [2**63, 4]])
def test_tensor_beyond_the_file_is_refused(tmp_path, sizes):
    content = header(tensors=tensor(sizes, 0), count=1) + bytes(64)
    refused(tmp_path / "a.gguf", content, r"the tensor token_embd\.weight ends at byte")


def test_row_that_ends_within_a_block_is_refused(tmp_path):
    about = struct.pack("<I2QIQ", 2, 33, 1, Q8_0, 0)
    content = header(tensors=text("token_embd.weight") + about, count=1) + bytes(200)
    refused(
        tmp_path / "a.gguf", content, "a row of the tensor token_embd.weight is not"
    )


@pytest.mark.parametrize("offset", [2**20, 2**64 - 32])
def test_offset_beyond_the_file_is_refused(tmp_path, offset):
    content = header(tensors=tensor([4], offset), count=1) + bytes(64)
    refused(tmp_path / "a.gguf", content, r"the tensor token_embd\.weight ends at byte")


def test_number_of_dimensions_beyond_the_file_is_refused(tmp_path):
    about = text("token_embd.weight") + struct.pack("<I", 2**31)
    refused(
        tmp_path / "a.gguf", header(tensors=about, count=1), "its header ends at byte"
    )


def test_values_of_a_header_are_bounded_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "PIECES", 100)
    empty = struct.pack("<IQ", UINT8, 0)
    content = header(array(ARRAY, 1000, 1000 * empty))
    refused(tmp_path / "a.gguf", content, "its header holds more than 100 values")


def test_more_layers_than_tensors_are_refused(tmp_path):
    path = tmp_path / "deep.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(10**6)
    writer.add_tensor("token_embd.weight", np.ones((8, 4), dtype=np.float32))
    gguf_files.finish(writer)
    with pytest.raises(ModelError, match="1000000 layers, and it holds 1 tensors"):
        Model.load(path)


def test_sizes_beyond_the_tensors_are_refused(tmp_path):
    path = tmp_path / "wide.gguf"
    gguf_files.quantized(
        gguf_files.small(tmp_path), path, "F32", **{"llama.feed_forward_length": 10**9}
    )
    with pytest.raises(ModelError, match=r"49152 weights, and its fields .* 128000"):
        Model.load(path)
