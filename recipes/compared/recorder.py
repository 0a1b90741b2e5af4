"""A plugin of pytest that loads given libraries, and records a hash of all that the
forward computes in each test.

It is used by compare.py: `-p compared.recorder`, with the variables below.
"""

import ctypes
import hashlib
import json
import os
from pathlib import Path
from typing import Any

LIBRARIES, RECORD = "FOREWORD_COMPARED", "FOREWORD_RECORD"
"""Variables: a folder with a library for each C file; the file for the hashes."""
recorded: dict[str, list[str]] = {}
"""Hashes by test, in the order of the calls."""


def _note(kind: str, *values: tuple[int | None, int]) -> None:
    """Record the bytes at these addresses."""
    digest = hashlib.sha256()
    for address, size in values:
        if address and size:
            digest.update(ctypes.string_at(address, size))
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    recorded.setdefault(test, []).append(f"{kind} {digest.hexdigest()[:16]}")


def _forward(model: Any, call: Any) -> None:
    hidden = call.rows * call.hidden_layer_count * model.hidden
    _note(
        "forward",
        (call.logits, 4 * call.kept * model.vocab),
        (call.hidden_states, 4 * hidden),
        (call.residual, 4 * call.rows * model.hidden if model.layers else 0),
    )


def _grow(_: Any, __: Any, tree: Any) -> None:
    _note(
        "tree",
        (tree.tokens, 8 * tree.count),
        (tree.parents, 8 * tree.count),
        (tree.probabilities, 8 * tree.count),
        (tree.read_tokens, 8 * tree.held),
    )


class _Watched:
    """A C function whose results are recorded."""

    def __init__(self, function: Any, note: Any) -> None:
        self.__dict__.update(function=function, note=note)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.function, name, value)

    def __call__(self, *given: Any) -> Any:
        result = self.function(*given)
        self.note(*(one._obj for one in given if hasattr(one, "_obj")))
        return result


def _loaded(source: Path) -> ctypes.CDLL:
    folder = Path(os.environ[LIBRARIES])
    library = ctypes.CDLL(str(folder / f"{source.stem}.so"))
    if source.stem == "foreword":
        library.foreword_forward = _Watched(library.foreword_forward, _forward)
        library.foreword_grow = _Watched(library.foreword_grow, _grow)
    return library


def pytest_configure() -> None:
    """Load the given libraries instead of compiling them, from now on."""
    from foreword.native import forward, layout, sampling, suffix

    compare = layout.check

    def check(library: ctypes.CDLL, *rest: Any) -> None:
        if hasattr(library, "foreword_layout"):  # an older library has no table
            compare(library, *rest)

    layout.check = check
    for module in (forward, sampling, suffix):
        module.compiled = _loaded


def pytest_sessionfinish() -> None:
    """Write the hashes."""
    Path(os.environ[RECORD]).write_text(json.dumps(recorded))
