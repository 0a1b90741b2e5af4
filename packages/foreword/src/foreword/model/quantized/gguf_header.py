"""Header of a GGUF file, read in one pass over a memory map: lengths are compared with
the file before use, and long arrays stay where they are.

Specification: ggml-org/ggml, docs/gguf.md.
"""

import math
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Bytes. Tensors start at its multiples, if the file does not say otherwise."""
NUMBERS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""The numpy type of each type of a number."""
STRING, ARRAY = 8, 9
DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
"""Types of tensors that numpy has; the others are bytes."""
PIECES = 2**17
"""Fields, tensors and nested arrays. Each takes hundreds of bytes once parsed; models
of hundreds of layers have some thousand."""
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor of a file, whose data stays on disk until it is read."""

    name: str
    kind: str
    """Name of its type."""
    shape: tuple[int, ...]
    """Sizes, that of the inputs first, as the file has them."""
    data: Any
    """Numbers in the shape of torch, or bytes: the last size is that of a row."""

    @property
    def n_elements(self) -> int:
        """Return the count of its numbers."""
        return math.prod(self.shape)


class Header:
    """Fields and tensors of one file, in their order."""

    def __init__(self, path: Path) -> None:
        """Read the header of a file.

        Raises ValueError where a length or an offset is beyond the end of the file,
        OSError where it cannot be read, ImportError without the package gguf.
        """
        self.fields: dict[str, Any] = {}
        """Numbers, texts, arrays of numpy, lists of arrays; of an array of texts, the
        function that reads it.
        """
        self._gguf: Any = import_module("gguf")
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._data = memoryview(self._mapped)
        self._at = 0
        self._pieces = 0
        if self._bytes(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        if (version := self._number("<I")) not in VERSIONS:
            raise ValueError(f"its version {version} is none of {VERSIONS}")
        tensor_count = self._number("<Q")
        field_count = self._number("<Q")
        for _ in range(field_count):
            name = self._text()
            if name in self.fields:
                raise ValueError(f"it holds the field {name} twice")
            self.fields[name] = self._value(self._number("<I"))
        described = [self._described() for _ in range(tensor_count)]
        alignment = self.fields.get("general.alignment", ALIGNMENT)
        self.end = -(-self._at // alignment) * alignment
        """Bytes of the header."""
        self.tensors = [self._tensor(*about) for about in described]

    def free(self) -> None:
        """Let go of the pages that were read: they count as memory of this process, and
        are read again from the file if need be.
        """
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such advice
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def field(self, name: str) -> Any:
        """Return the value of a field; None where there is none."""
        value = self.fields.get(name)
        if isinstance(value, np.ndarray):
            return value.tolist()
        return value() if callable(value) else value

    def _value(self, kind: int) -> Any:
        self._count()
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            return self._array()
        if kind not in NUMBERS:
            raise ValueError(f"a field has the unknown type {kind}")
        dtype = np.dtype(NUMBERS[kind])
        return np.frombuffer(self._bytes(dtype.itemsize), dtype)[0].item()

    def _array(self) -> Any:
        kind, count = self._number("<I"), self._number("<Q")
        if kind in NUMBERS:
            dtype = np.dtype(NUMBERS[kind])
            size = count * dtype.itemsize
            self._check("an array", self._at + size)
            return np.frombuffer(self._bytes(size), dtype)
        shortest = LENGTH.size if kind == STRING else 4 + LENGTH.size
        self._check("an array", self._at + count * shortest)
        if kind == STRING:
            return self._strings(count)
        return [self._value(kind) for _ in range(count)]

    def _strings(self, count: int) -> Callable[[], list[str]]:
        data = self._data
        last = len(data) - LENGTH.size
        at = self._at
        ends = [at]
        for _ in range(count):
            if at > last:
                break
            (length,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size + length
            ends.append(at)
        self._check("an array", at if len(ends) > count else at + LENGTH.size)
        self._at = at
        return partial(_decoded, data, ends)

    def _described(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, sizes, type and offset of a tensor."""
        self._count()
        name, dimensions = self._text(), self._number("<I")
        self._check("its header", self._at + dimensions * LENGTH.size)
        sizes = tuple(self._number("<Q") for _ in range(dimensions))
        return name, sizes, self._number("<I"), self._number("<Q")

    def _tensor(
        self, name: str, sizes: tuple[int, ...], kind: int, offset: int
    ) -> TensorData:
        start = self.end + offset
        type_ = self._gguf.GGMLQuantizationType(kind)
        block, size = self._gguf.GGML_QUANT_SIZES[type_]
        if sizes[0] % block:
            raise ValueError(f"a row of the tensor {name} is not whole blocks")
        row = sizes[0] * size // block
        length = row * math.prod(sizes[1:])
        self._check(f"the tensor {name}", start + length)
        dtype = DTYPES.get(type_.name, "u1")
        shape = (*sizes[:0:-1], sizes[0] if type_.name in DTYPES else row)
        data = np.frombuffer(self._data[start:][:length], dtype)
        return TensorData(name, type_.name, sizes, data.reshape(shape))

    def _text(self) -> str:
        return str(self._bytes(self._number("<Q")), "utf-8")

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> memoryview:
        end = self._at + count
        self._check("its header", end)
        content = self._data[self._at : end]
        self._at = end
        return content

    def _count(self) -> None:
        self._pieces += 1
        if self._pieces > PIECES:
            raise ValueError(f"its header holds more than {PIECES} values")

    def _check(self, whose: str, end: int) -> None:
        if end > len(self._data):
            raise ValueError(
                f"{whose} ends at byte {end}, and the file has {len(self._data)}"
            )


def _decoded(data: memoryview, ends: Sequence[int]) -> list[str]:
    """Return the texts that end at these bytes; they begin at the first number."""
    return [
        str(data[start + LENGTH.size : end], "utf-8") for start, end in pairwise(ends)
    ]
