"""Types of the functions in C, and comparison of its structures with their mirrors in
Python (csrc/layout.c).
"""

import ctypes
from collections.abc import Mapping
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_uint64,
    c_void_p,
)
from typing import Any, NamedTuple

from foreword.errors import ModelError

TYPES: Mapping[str, Any] = {
    "p": c_void_p,
    "l": c_int64,
    "u": c_uint64,
    "i": c_int,
    "f": c_float,
}
"""Letters of `declare`; p also takes arrays and references."""


class _Entry(Structure):
    """An entry of the table that C exports."""

    __slots__ = ()
    _fields_ = [
        ("structure", c_char_p),
        ("field", c_char_p),
        ("offset", c_int64),
        ("size", c_int64),
    ]


class Field(NamedTuple):
    """A field of a structure: bytes before it, and its own. The name of the whole
    structure is empty.
    """

    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        name = self.name or "the structure"
        return f"{name} ({self.size} bytes at {self.offset})"


def check(
    library: ctypes.CDLL, mirrors: Mapping[str, type[Structure]], where: str
) -> None:
    """Compare the fields of the classes with those in C, by the names in C.

    `where` names the Python module. Raises ModelError at the first difference.
    """
    there = _exported(library)
    for name, mirror in mirrors.items():
        ours, theirs = mirrored(mirror), there.get(name, [])
        if ours == theirs:
            continue
        pairs = zip([*ours, None], [*theirs, None], strict=False)
        ours_first, theirs_first = next(pair for pair in pairs if pair[0] != pair[1])
        raise ModelError(
            f"cannot use the C library: {name} has {theirs_first or 'no more fields'} "
            f"in C, and {ours_first or 'no more fields'} in {where}. Make the "
            "structure, its entry in csrc/layout.c and the Python class agree"
        )


def fields(type: Any, names: str) -> list[tuple[str, Any]]:
    """Return consecutive fields of one type, for `_fields_`."""
    return [(name, type) for name in names.split()]


def declare(library: ctypes.CDLL, functions: Mapping[str, str]) -> None:
    """Set the types of functions, whose names begin with `foreword_`: a letter of TYPES
    for each argument, then a colon and that of the result, if there is one.
    """
    for name, types in functions.items():
        function = getattr(library, f"foreword_{name}")
        arguments, _, result = types.partition(":")
        function.argtypes = [TYPES[letter] for letter in arguments]
        function.restype = TYPES.get(result)


def mirrored(mirror: type[Structure]) -> list[Field]:
    """Return the whole structure, then its fields in order, as ctypes places them."""
    fields = [Field("", 0, ctypes.sizeof(mirror))]
    for name, *_ in mirror._fields_:
        member = getattr(mirror, name)
        fields.append(Field(name, member.offset, member.size))
    return fields


def _exported(library: ctypes.CDLL) -> dict[str, list[Field]]:
    """Return the fields of each structure as C exports them."""
    library.foreword_layout.argtypes = []
    library.foreword_layout.restype = POINTER(_Entry)
    table, structures = library.foreword_layout(), {}
    number = 0
    while table[number].structure is not None:
        entry = table[number]
        fields = structures.setdefault(entry.structure.decode(), [])
        fields.append(Field((entry.field or b"").decode(), entry.offset, entry.size))
        number += 1
    return structures
