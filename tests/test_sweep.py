"""docs/models.md says of every kind of model what is found here."""

import re

import pytest

import zoo
from sweep import DTYPES, PAGE, find


def listed() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (\S+) \| ([^|]*) \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {kind: list(cells) for kind, *cells in rows if kind != "kind"}


def test_every_kind_is_listed_and_none_differs():
    page = listed()
    assert set(page) == set(zoo.kinds())
    assert [kind for kind, cells in page.items() if "differs" in "".join(cells)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "cells"), listed().items() if PAGE.exists() else [])
def test_a_kind_is_driven_as_the_page_says(kind, cells):
    for dtype, cell in zip(DTYPES, cells, strict=True):
        if cell != "-":
            found = find(kind, dtype)
            assert found.differing == ()
            assert found.way.replace("plain (whole texts)", "plain, whole texts") == cell
