"""The names of a benchmark's rows, by default or from the options."""

from collections.abc import Sequence

from foreword.draft import MethodSpec, method
from foreword.errors import UnknownMethod
from foreword.model.loading import hub
from foreword.registry import DEFAULT_METHOD, DEFAULT_WITH_DRAFT, PLAIN
from foreword_lab.bench.lineup import ENTRIES, PLAIN_ROW, SPECULATIVE
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.peers import hf, registry

BASELINES = (PLAIN_ROW, hf.GENERATE)
"""Entries that are always measured, but for a GGUF file the second only if named:
transformers dequantizes it. Every ratio is over one of them.
"""
DEFAULT_METHODS = (DEFAULT_METHOD, DEFAULT_WITH_DRAFT)
"""Methods measured by default."""
ALL = "all"


def row_names(
    methods: Sequence[str] | None,
    quick: bool,
    others: Sequence[str] = (),
    target: str | None = None,
) -> tuple[str, ...]:
    """Return the names of the rows: the default ones, or `methods` and the baselines;
    ALL stands for every method.

    `others` are engines measured as well; `target` is the source of the target.
    Ensembles are written like calls, "name(one, two)". Raises UnknownMethod for other
    names, and InvalidRequest for engines that do not exist or are not installed.
    """
    on_file = target is not None and hub.gguf(target) is not None
    baselines = BASELINES[:1] if on_file else BASELINES
    peers = registry.entry_names(others)
    if methods is None:
        defaults = (*DEFAULT_METHODS, ORACLE, *hf.USUAL, *peers)
        return (
            PLAIN_ROW,
            *(name for name in defaults if not (quick and name == hf.LOOKUP)),
        )
    registry.check(methods)
    names = [PLAIN_ROW if name == PLAIN else name for name in methods]
    names = [
        name for given in names for name in (SPECULATIVE if given == ALL else (given,))
    ]
    made_here = [name for name in dict.fromkeys(names) if name not in ENTRIES]
    for name in made_here:
        if not isinstance(method(name), MethodSpec):
            raise UnknownMethod(
                f"cannot measure {name!r}: no such entry. Choose from "
                f"{', '.join(ENTRIES)}"
            )
    first = [name for name in ENTRIES if name in (*names, *baselines, *peers)]
    return (*first[:1], *made_here, *first[1:])
