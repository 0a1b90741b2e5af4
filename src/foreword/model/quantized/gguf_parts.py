"""Provides the parts of a GGUF model in several files, compared with each other before
anything is built from them.

Names and fields: ggml-org/llama.cpp, tools/gguf-split. The first part has the metadata;
each part has its own offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foreword.errors import ModelError
from foreword.files import part_names

NUMBER, COUNT = "split.no", "split.count"
TENSORS = "split.tensors.count"
"""Fields of each part: its number, from 0, the number of parts, and all tensors."""
SAME = (COUNT, TENSORS, "general.architecture", "general.name")
"""Fields that are equal in all parts that have them."""


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a model, by the path of one of them; they may
    not exist.
    """
    return [path.with_name(name) for name in part_names(path.name)]


def check_parts(
    source: str,
    paths: Sequence[Path],
    readers: Sequence[Any],
) -> dict[str, Any]:
    """Return the ReaderTensor of each name in all parts.

    `readers`: the GGUFReader of each path. Raises ModelError, with the names of files,
    where they are not the parts of one model.
    """
    first = readers[0]
    names = [path.name for path in paths]
    count = _field(first, COUNT) or 1
    if len(paths) == 1 and count > 1:
        raise ModelError(
            f"cannot read {source}: it is one of {count} parts, and its name does not "
            f"say which. Name the parts NAME-00001-of-{count:05d}.gguf and so on"
        )
    if len(paths) > 1:
        for number, reader in enumerate(readers):
            _check_number(source, names, number, reader)
            _check_same(source, names, number, readers)
    tensors = _joined(source, names, readers)
    expected = _field(first, TENSORS)
    if expected is not None and expected != len(tensors):
        raise ModelError(
            f"cannot read {source}: {names[0]} says that there are {expected} tensors, "
            f"and {_listed(names)} hold {len(tensors)}. {AGAIN}"
        )
    return tensors


AGAIN = "Download all parts of the same model again"


def _check_number(
    source: str,
    names: Sequence[str],
    number: int,
    reader: Any,
) -> None:
    """Raise ModelError for a part with another number, or of another number of parts,
    than its name says.
    """
    found = _field(reader, NUMBER)
    count = _field(reader, COUNT)
    if found is None or count is None:
        raise ModelError(
            f"cannot read {source}: {names[number]} lacks the fields of a part "
            f"({NUMBER}, {COUNT}). {AGAIN}"
        )
    if (found, count) != (number, len(names)):
        raise ModelError(
            f"cannot read {source}: {names[number]} holds part {found + 1} of {count}, "
            f"not part {number + 1} of {len(names)}. {AGAIN}"
        )


def _check_same(
    source: str,
    names: Sequence[str],
    number: int,
    readers: Sequence[Any],
) -> None:
    """Raise ModelError for a part that belongs to another model than the first one."""
    for field in SAME:
        first = _field(readers[0], field)
        found = _field(readers[number], field)
        if found is not None and found != first:
            raise ModelError(
                f"cannot read {source}: {names[number]} is a part of another model "
                f"than {names[0]}: {field} is {found!r}, not {first!r}. {AGAIN}"
            )


def _joined(
    source: str, names: Sequence[str], readers: Sequence[Any]
) -> dict[str, Any]:
    """Return the tensors of all parts. Raises ModelError for one that is there
    twice.
    """
    tensors: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, reader in zip(names, readers, strict=True):
        for tensor in reader.tensors:
            if tensor.name in tensors:
                raise ModelError(
                    f"cannot read {source}: {places[tensor.name]} and {name} both hold "
                    f"the tensor {tensor.name}. {AGAIN}"
                )
            tensors[tensor.name] = tensor
            places[tensor.name] = name
    return tensors


def _field(reader: Any, name: str) -> Any:
    fields: Mapping[str, Any] = reader.fields
    field = fields.get(name)
    return None if field is None else field.contents()


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
