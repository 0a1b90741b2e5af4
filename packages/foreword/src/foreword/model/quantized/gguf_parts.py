"""Parts of a GGUF model in several files, compared with each other before anything is
built from them.

Names and fields: ggml-org/llama.cpp, tools/gguf-split. The first part has the metadata;
each part has its own offsets.
"""

from collections.abc import Sequence
from pathlib import Path

from foreword.errors import ModelError
from foreword.model.quantized.gguf_header import Header, TensorData

NUMBER, COUNT = "split.no", "split.count"
TENSORS = "split.tensors.count"
"""Fields of each part: its number, from 0, the number of parts, and all tensors."""
SAME = (COUNT, TENSORS, "general.architecture", "general.name")
"""Fields that are equal in all parts that have them."""


def check_parts(
    source: str,
    paths: Sequence[Path],
    headers: Sequence[Header],
) -> dict[str, TensorData]:
    """Return the tensor of each name in all parts.

    `headers`: the header of each path. Raises ModelError, with the names of files,
    where they are not the parts of one model.
    """
    first = headers[0]
    names = [path.name for path in paths]
    count = first.fields.get(COUNT) or 1
    if len(paths) == 1 and count > 1:
        raise ModelError(
            f"cannot read {source}: it is one of {count} parts, and its name does not "
            f"say which. Name the parts NAME-00001-of-{count:05d}.gguf and so on"
        )
    if len(paths) > 1:
        for number, header in enumerate(headers):
            _check_number(source, names, number, header)
            _check_same(source, names, number, headers)
    tensors = _joined(source, names, headers)
    expected = first.fields.get(TENSORS)
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
    header: Header,
) -> None:
    """Raise ModelError for a part with another number, or of another number of parts,
    than its name says.
    """
    part = header.fields.get(NUMBER)
    count = header.fields.get(COUNT)
    if part is None or count is None:
        raise ModelError(
            f"cannot read {source}: {names[number]} lacks the fields of a part "
            f"({NUMBER}, {COUNT}). {AGAIN}"
        )
    if (part, count) != (number, len(names)):
        raise ModelError(
            f"cannot read {source}: {names[number]} holds part {part + 1} of {count}, "
            f"not part {number + 1} of {len(names)}. {AGAIN}"
        )


def _check_same(
    source: str,
    names: Sequence[str],
    number: int,
    headers: Sequence[Header],
) -> None:
    """Raise ModelError for a part that belongs to another model than the first one."""
    for field in SAME:
        first = headers[0].fields.get(field)
        value = headers[number].fields.get(field)
        if value is not None and value != first:
            raise ModelError(
                f"cannot read {source}: {names[number]} is a part of another model "
                f"than {names[0]}: {field} is {value!r}, not {first!r}. {AGAIN}"
            )


def _joined(
    source: str, names: Sequence[str], headers: Sequence[Header]
) -> dict[str, TensorData]:
    """Return the tensors of all parts. Raises ModelError for a repeated one."""
    tensors: dict[str, TensorData] = {}
    places: dict[str, str] = {}
    for name, header in zip(names, headers, strict=True):
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ModelError(
                    f"cannot read {source}: {places[tensor.name]} and {name} both hold "
                    f"the tensor {tensor.name}. {AGAIN}"
                )
            tensors[tensor.name] = tensor
            places[tensor.name] = name
    return tensors


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
