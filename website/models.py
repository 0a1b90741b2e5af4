"""Fill the tables of docs/models.md from docs/numbers/models/sweep.json.

`tests/support/sweep.py` writes that file. `python -m website.models` fills the regions
between `<!-- models: NAME -->` and `<!-- end -->`; with `--check` it writes nothing and
fails where the page differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
SWEEP = ROOT / "docs" / "numbers" / "models" / "sweep.json"
REGION = re.compile(
    r"^<!-- models: (?P<name>\w+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE
)
FAMILIES = {
    "dense": "decoders with dense MLPs, like Llama",
    "experts": "decoders with experts",
    "recurrent": "decoders with recurrent layers",
    "seq2seq": "decoders of encoder-decoders, alone",
    "encoder": "encoders with a causal mask",
}
"""Family in the file -> its words, in the order of the table."""
BACKENDS = {
    "native": "all, as trees",
    "pool": "all but `quantized`, as trees",
    "cache": "chains; all but `layers`, `quantized`",
    "plain": "none",
}
"""Backend -> the drafters that serve it, best first."""
ONLY_FLOAT32 = "in float32 only"
REASONS = (
    (r"bidirectional", "bidirectional: a score depends on later tokens"),
    (r"selects keys by an index", "its attention selects keys by an index"),
    (r"on any backend", "no backend computes its scores exactly"),
    (r"", "not tried: no small model of this kind could be made"),
)
"""Pattern of an error -> what it means; the first that matches counts."""

Kind = Mapping[str, Any]


def write(*, check: bool = False) -> list[str]:
    """Fill the page; return its path if it differed. With `check`, write nothing."""
    text = PAGE.read_text(encoding="utf-8")
    filled = fill(text, json.loads(SWEEP.read_text(encoding="utf-8")))
    if filled == text:
        return []
    if not check:
        PAGE.write_text(filled, encoding="utf-8")
    return [PAGE.relative_to(ROOT).as_posix()]


def fill(text: str, sweep: Mapping[str, Any]) -> str:
    """Return the text of the page with every region filled."""
    tables = {"served": served, "refused": refused}

    def filled(region: re.Match[str]) -> str:
        table = "\n".join(tables[region["name"]](sweep["kinds"]))
        return f"<!-- models: {region['name']} -->\n{table}\n<!-- end -->"

    return REGION.sub(filled, text)


def served(kinds: Mapping[str, Kind]) -> Iterable[str]:
    """Yield a table: for each family and backend, the kinds and their drafters."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, kind in kinds.items():
        backend = _backend(kind)
        if backend is not None:
            groups[kind["family"], backend] += _words(name, kind)
    yield "| model | backend | drafters | `model_type` in `config.json` |"
    yield "|---|---|---|---|"
    for family, words in FAMILIES.items():
        first = words
        for backend, drafters in BACKENDS.items():
            names = _sorted(groups.get((family, backend), []))
            if names:
                yield _row(first, f"`{backend}`", drafters, ", ".join(names))
                first = ""


def refused(kinds: Mapping[str, Kind]) -> Iterable[str]:
    """Yield a table: the reason, and the kinds that it keeps from running."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, kind in kinds.items():
        if _backend(kind) is None:
            groups[_reason(kind)] += _words(name, kind)
    yield "| reason | `model_type` in `config.json` |"
    yield "|---|---|"
    for _, reason in REASONS:
        if reason in groups:
            yield _row(reason, ", ".join(_sorted(groups[reason])))


def _backend(kind: Kind) -> str | None:
    """Return the backend in bfloat16, else the one in float32; None if neither runs."""
    found = kind["bfloat16"]["backend"] or kind["float32"]["backend"]
    return found and found.partition(" ")[0]


def _words(name: str, kind: Kind) -> list[str]:
    """Return a kind and those of the same class, as the table has them."""
    names = [f"`{one}`" for one in (name, *kind.get("also", ()))]
    if kind["bfloat16"]["backend"] is None and kind["float32"]["backend"]:
        return [f"{one} ({ONLY_FLOAT32})" for one in names]
    return names


def _reason(kind: Kind) -> str:
    why = kind["bfloat16"]["why"] or kind["float32"]["why"]
    return next(reason for pattern, reason in REASONS if re.search(pattern, why))


def _sorted(words: list[str]) -> list[str]:
    return sorted(words, key=lambda word: word.split("`")[1])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    only_check = sys.argv[1:] == ["--check"]
    stale = write(check=only_check)
    if only_check and stale:
        sys.exit(
            f"{stale[0]} differs from {SWEEP.name}: run `python -m website.models`"
        )
