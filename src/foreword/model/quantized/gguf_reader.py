"""Provides the parser of the package gguf with bounds: lengths in a header are compared
with the file before use.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

PIECES = 2**22
"""Numbers and texts of a header. Each takes about 250 bytes once parsed; vocabularies
of 262,144 tokens have 1.3 million."""
STRING, ARRAY = 8, 12
"""Bytes.

The shortest string and the shortest array: their lengths, and for an array the type of
its values.
"""


def parsed(path: Path) -> Any:
    """Return the GGUFReader of a file. Raises ValueError where a length or an offset is
    beyond the end of the file.

    Raises ImportError without the package gguf.
    """
    return _reader(import_module("gguf"))(path)


@cache
def _reader(gguf: Any) -> Any:
    """Return the class.

    GGUFReader slices beyond the end without an error, then loops as often as the header
    says.
    """
    kinds = gguf.GGUFValueType
    lengths = {kinds.STRING: STRING, kinds.ARRAY: ARRAY}

    class BoundedReader(gguf.GGUFReader):
        pieces = 0

        def _get(
            self,
            offset: Any,
            dtype: Any,
            count: Any = 1,
            override_order: Any = None,
        ) -> Any:
            size = np.dtype(dtype).itemsize * int(count)
            self._check("its header", int(offset) + size)
            self.pieces += 1
            if self.pieces > PIECES:
                raise ValueError(f"its header holds more than {PIECES} values")
            return super()._get(offset, dtype, count, override_order)

        def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
            if raw_type == kinds.ARRAY:
                kind = self._get(orig_offs, np.uint32)[0]
                count = self._get(orig_offs + 4, np.uint64)[0]
                size = int(count) * self._shortest(kind)
                self._check("an array", int(orig_offs) + ARRAY + size)
            return super()._get_field_parts(orig_offs, raw_type)

        def _build_tensors(self, start_offs: Any, fields: Any) -> None:
            for field in fields:
                _, name, _, sizes, kind, offset = field.parts
                block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
                bytes_ = math.prod(map(int, sizes)) * size // block
                whose = f"the tensor {bytes(name).decode()}"
                self._check(whose, int(start_offs) + int(offset[0]) + bytes_)
            super()._build_tensors(start_offs, fields)

        def _shortest(self, kind: Any) -> int:
            """Return the bytes of a type's shortest value; 1 for an unknown type."""
            number = self.gguf_scalar_to_np.get(kind)
            return lengths.get(kind, 1) if number is None else np.dtype(number).itemsize

        def _check(self, whose: str, end: int) -> None:
            if end > len(self.data):
                raise ValueError(
                    f"{whose} ends at byte {end}, and the file has {len(self.data)}"
                )

    return BoundedReader
