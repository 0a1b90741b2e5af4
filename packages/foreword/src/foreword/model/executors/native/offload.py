"""Packed weights in a file: the first layers are kept in memory, the others read in
every forward (csrc/stream.c).
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.executors.native.layout import matrices_of
from foreword.native import forward
from foreword.native.huge_pages import LINE, Pages

FILE, TABLE = "matrices.bin", "matrices.json"
LAYOUT = 2
"""Version of the packed matrices; increase it when their bytes change, so that old
folders are ignored.
"""
BLOCK = 4096
"""Bytes. Parts begin and end at multiples of it, as reads past the page cache need."""
SLOTS = 2
"""Buffers in memory for the layers that every forward reads from disk; as in
csrc/stream.c.
"""
SHARE = 0.75
"""Share of the free memory for weights; the rest is for keys, values and others."""
FIXED = ("router",)
"""Packed matrices of a layer that are always in memory, as the LM head and the
embeddings are.
"""


class Stream:
    """A thread that reads layers into slots, ahead of the forward that needs them."""

    def __init__(
        self, file: Path, first: int, starts: Sequence[int], slots: Tensor
    ) -> None:
        """`starts`: where the parts of the layers from `first` on start in the file,
        and the end of the last.
        """
        self._library, self._file = forward.needed(), file
        offsets = np.array(starts, dtype=np.int64)
        handle = self._library.foreword_stream(
            os.fsencode(file),
            first,
            len(starts) - 1,
            offsets.ctypes.data,
            slots.data_ptr(),
            slots.shape[1],
        )
        if not handle:
            raise ModelError(
                f"cannot read {file} ahead: no thread was started. Raise the limit of "
                "threads (ulimit -u)"
            )
        self.handle: int = handle
        self.layers = len(starts) - 1
        self.slots = slots
        self.close = weakref.finalize(self, self._library.foreword_end_stream, handle)

    def check(self) -> None:
        """Raise ModelError if a read has failed, after which results are wrong."""
        if error := self._library.foreword_stream_failed(self.handle):
            raise ModelError(
                f"cannot read weights from {self._file}: {os.strerror(error)}. Load "
                "the model again"
            )


def write(
    model: forward.Model, held: Sequence[Tensor], table: Tensor, folder: Path
) -> None:
    """Write the matrices of a described model, which are among the tensors `held`, and
    a table of their places.

    `table`: the embeddings, if they are looked up in a packed matrix or in rows of a
    GGUF file.
    """
    tensors = {tensor.data_ptr(): tensor for tensor in (*held, table)}
    layers = model.layer[: model.layers]
    fixed: list[dict[str, Any]] = []
    with (folder / FILE).open("wb") as file:
        parts = [_part(file, layer, matrices_of(layer), tensors) for layer in layers]
        for layer in layers:
            names = [name for name in FIXED if getattr(layer, name)]
            fixed.append(_part(file, layer, names, tensors))
        names = [name for name in ("head", "table") if getattr(model, name)]
        around = _part(file, model, names, tensors)
    forms = {"coding": model.coding, "table_kind": model.table_kind}
    about = {**forms, "layers": parts, "fixed": fixed, "around": around}
    (folder / TABLE).write_text(json.dumps(about), encoding="utf-8")


def _part(
    file: IO[bytes], owner: Any, names: Sequence[str], tensors: Mapping[int, Tensor]
) -> dict[str, Any]:
    """Write matrices one after the other, from a multiple of BLOCK to one; return where
    each of them is in its part.
    """
    start, places = file.tell(), dict[str, list[Any]]()
    for name in names:
        file.write(bytes(-file.tell() % LINE))
        places[name] = [file.tell() - start]
        tensor = tensors[getattr(owner, name)]
        places[name][1:] = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        file.write(tensor.flatten().view(torch.uint8).numpy().data)
    file.write(bytes(-file.tell() % BLOCK))
    return {"start": start, "stop": file.tell(), "places": places}


def attach(
    model: forward.Model, folder: Path, free: int
) -> tuple[list[Tensor], Stream | None]:
    """Point a described model to the matrices in a folder; return the tensors that hold
    them, and what reads others.

    `free`: bytes of memory for weights. Layers that do not fit are read from the file
    in every forward. If all fit, the file is mapped, so that processes share its pages.
    """
    table = json.loads((folder / TABLE).read_text(encoding="utf-8"))
    path = folder / FILE
    pages = Pages()
    parts = table["layers"]
    model.coding, model.table_kind = table["coding"], table["table_kind"]
    layers = model.layer[: model.layers]
    held: list[Tensor] = []
    if size(folder) <= free:
        mapped = _mapped(path, table["around"]["stop"])
        for owner, part in (
            *_fixed(model, layers, table),
            *zip(layers, parts, strict=True),
        ):
            memory = mapped[part["start"] : part["stop"]]
            held += _point(owner, part, memory)
        return held, None
    with path.open("rb", buffering=0) as file:
        for owner, part in _fixed(model, layers, table):
            held += _placed(file, pages, part, owner)
        sizes = [part["stop"] - part["start"] for part in parts]
        first = kept(sizes, free - sum(tensor.nbytes for tensor in held))
        for part, layer in zip(parts[:first], layers[:first], strict=True):
            held += _placed(file, pages, part, layer)
    if first == len(layers):
        return held, None
    slots = Pages().empty((SLOTS, max(sizes[first:])), torch.uint8)
    for number, (layer, part) in enumerate(
        zip(layers[first:], parts[first:], strict=True)
    ):
        _point(layer, part, slots[number % SLOTS])
    starts = [part["start"] for part in parts[first:]]
    return held, Stream(path, first, [*starts, parts[-1]["stop"]], slots)


def _mapped(file: Path, size: int) -> UInt8[Tensor, "bytes"]:
    """Return a file as memory that is read when it is used, and never written.

    Raises ModelError for a file of fewer bytes.
    """
    if file.stat().st_size < size:
        raise _cut(file)
    return torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)


def size(folder: Path) -> int:
    """Return the bytes of the matrices in a folder."""
    return (folder / FILE).stat().st_size


def kept(sizes: Sequence[int], free: int) -> int:
    """Return how many of the first layers to keep in memory: all, or so many that the
    others are a multiple of SLOTS.

    A model has at least SLOTS layers.
    """
    if sum(sizes) <= free:
        return len(sizes)
    ends = list(accumulate(sizes, initial=SLOTS * max(sizes)))[: len(sizes)]
    least = len(sizes) % SLOTS
    counts = range(least, len(sizes), SLOTS)
    return max((count for count in counts if ends[count] <= free), default=least)


def _fixed(
    model: forward.Model, layers: Sequence[forward.Layer], table: Mapping[str, Any]
) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    yield model, table["around"]
    yield from (
        (layer, part)
        for layer, part in zip(layers, table["fixed"], strict=True)
        if part["places"]
    )


def _placed(
    file: IO[bytes], pages: Pages, part: Mapping[str, Any], owner: Any
) -> list[Tensor]:
    """Read a part into memory, and point its owner to it; return its matrices."""
    memory = pages.empty((part["stop"] - part["start"],), torch.uint8)
    file.seek(part["start"])
    view, done = memoryview(memory.numpy().data), 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[attr-defined] # a raw file
        if not got:
            raise _cut(file.name)
        done += got
    if hasattr(os, "posix_fadvise"):  # not on every system
        os.posix_fadvise(
            file.fileno(), part["start"], len(view), os.POSIX_FADV_DONTNEED
        )
    return _point(owner, part, memory)


def _cut(file: str | Path) -> ModelError:
    return ModelError(
        f"cannot read {file}: it ends too early. Remove its folder and load the model "
        "again"
    )


def _point(
    owner: Any, part: Mapping[str, Any], memory: UInt8[Tensor, "bytes"]
) -> list[Tensor]:
    matrices: list[Tensor] = []
    for name, (at, size, kind) in part["places"].items():
        dtype = getattr(torch, kind)
        matrices.append(
            memory[at : at + math.prod(size) * dtype.itemsize].view(dtype).view(size)
        )
        setattr(owner, name, matrices[-1].data_ptr())
    return matrices
