"""The tables of docs/models.md are what docs/numbers/models/sweep.json says."""

from typing import Any

from website import models


def kind(family: str, backend: str | None, why: str = "") -> dict[str, Any]:
    cell = {"backend": backend, "why": why, "differs": []}
    return {"family": family, "float32": cell, "bfloat16": cell}


def test_the_page_is_filled_from_the_file():
    assert models.write(check=True) == [], "run `python -m website.models`"


def test_a_kind_stands_in_one_row_with_others_of_its_class():
    kinds = {
        "one": kind("dense", "native") | {"also": ["three"]},
        "two": kind("dense", "plain (whole texts)"),
        "four": kind("encoder", None, "ModelError: Four is bidirectional"),
    }
    _, _, first, second = models.served(kinds)
    assert first.endswith("| `native` | all, as trees | `one`, `three` |")
    assert second == "|  | `plain` | none | `two` |"
    assert [*models.refused(kinds)][2:] == [
        "| bidirectional: a score depends on later tokens | `four` |"
    ]


def test_a_backend_in_float32_alone_is_named_so():
    half = kind("dense", "pool")
    half["bfloat16"] = {"backend": None, "why": "TypeError: no", "differs": []}
    *_, row = models.served({"one": half})
    assert row.endswith("| `one` (in float32 only) |")
