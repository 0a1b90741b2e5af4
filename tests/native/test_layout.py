"""Structures of C and of Python are compared when a library is loaded."""

import ctypes
from ctypes import Structure, c_float, c_int64, c_void_p

import pytest

from foreword.errors import ModelError
from foreword.native import forward, layout, suffix, tree
from grids import NEEDS_C

pytestmark = NEEDS_C
FIELDS = [(name, c_int64) for name in ("count", "top_k", "shared", "inner")]
FIELDS += [(name, c_int64) for name in ("sigmoid", "normed", "gated")]
FIELDS += [("scale", c_float)]
"""The fields of `Experts`."""


def made(fields: list[tuple[str, type]]) -> dict[str, type[Structure]]:
    """A mirror of `Experts` with these fields."""
    return {"Experts": type("Experts", (Structure,), {"_fields_": fields})}


def test_structures_agree():
    layout.check(forward.needed(), made(FIELDS), "here")
    layout.check(forward.needed(), forward._MIRRORS, "here")
    layout.check(forward.needed(), {"CoupledTree": tree.CoupledTree}, "here")
    library = suffix.library()
    assert library is not None
    layout.check(library, suffix._MIRRORS, "here")


def test_every_structure_in_c_has_a_mirror():
    names = {*layout._exported(forward.needed())}
    assert names == {*forward._MIRRORS, "CoupledTree"}


WRONG = {
    "order": (
        [FIELDS[1], FIELDS[0], *FIELDS[2:]],
        r"count \(8 bytes at 0\) in C.*top_k",
    ),
    "name": (
        [*FIELDS[:7], ("factor", c_float)],
        r"scale .* in C, and factor .* in here",
    ),
    "size": ([*FIELDS[:7], ("scale", c_void_p)], r"scale \(4 bytes at 56\).*scale \(8"),
    "missing": (FIELDS[:7], r"the structure \(64 bytes at 0\) in C.*\(56 bytes at 0\)"),
    "none": ([], r"the structure \(64 bytes at 0\)"),
}
"""Fields that differ, and what the error says."""


@pytest.mark.parametrize("case", WRONG)
def test_structure_that_differs_is_refused(case):
    fields, expected = WRONG[case]
    with pytest.raises(ModelError, match=f"the C library: Experts.*{expected}"):
        layout.check(forward.needed(), made(fields), "here")


def test_structure_that_c_does_not_export_is_refused():
    other = type("Other", (Structure,), {"_fields_": FIELDS})
    with pytest.raises(ModelError, match="Other has no more fields in C"):
        layout.check(forward.needed(), {"Other": other}, "here")


def test_library_is_compared_when_it_is_loaded(monkeypatch):
    """A field in another place refuses the library, not only the check alone."""
    monkeypatch.setitem(forward._MIRRORS, "Experts", made(FIELDS[::-1])["Experts"])
    with pytest.raises(ModelError, match=r"native/forward\.py"):
        forward.library.__wrapped__()
    assert isinstance(forward.library(), ctypes.CDLL)
