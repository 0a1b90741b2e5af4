"""Registry of baselines other than transformers: which engines are installed, and their
entries, imported on use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest
from foreword_lab.bench.peers.convert import FORMS
from foreword_lab.bench.peers.engines import ALL, ENGINES, MODES, Package
from foreword_lab.bench.records import Entry
from foreword_train.gguf.source import Source


@dataclass(frozen=True, slots=True)
class Pair:
    """The measured target and draft model, as transformers models."""

    target: Callable[[], Source]
    draft: Callable[[], Source]
    """Raises InvalidRequest if no draft model was named."""
    note: Callable[[str], None]
    """Gets a line before a slow step."""


def entry_names(engines: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the entries of these engines; ALL stands for all installed
    ones.

    Raises InvalidRequest for an engine that does not exist or is not installed, and for
    ALL if none is installed.
    """
    for name in engines:
        if name not in (ALL, *ENGINES):
            raise InvalidRequest(
                f"cannot measure {name!r}: no such baseline. Choose from "
                f"{', '.join((ALL, *ENGINES))}"
            )
    available = [name for name, package in ENGINES.items() if not _missing(package)]
    if ALL in engines and not available:
        raise InvalidRequest(
            "cannot measure baselines: none is installed. Run: "
            f"{ENGINES['openvino'].install}"
        )
    names = [
        name
        for name in ENGINES
        if name in engines or (ALL in engines and name in available)
    ]
    entries = tuple(f"{name}.{mode}" for name in names for mode in MODES)
    check(entries)
    return entries


def check(names: Sequence[str]) -> None:
    """Raise InvalidRequest, which names what to install, unless the engines of these
    entries are importable.
    """
    for engine in _engines(names):
        missing = _missing(ENGINES[engine])
        if missing:
            raise InvalidRequest(
                f"cannot measure {engine} without {', '.join(missing)}. Run: "
                f"{ENGINES[engine].install}"
            )


def make(name: str, pair: Pair) -> Entry:
    """Return the entry of this name in NAMES; its models are converted if needed."""
    engine, _, mode = name.partition(".")
    return import_module(ENGINES[engine].entry_module).entry(name, mode, pair)


def versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of the entries' engines; "unknown" without metadata."""
    by_distribution = {}
    for name in (ENGINES[engine].distribution for engine in _engines(names)):
        try:
            by_distribution[name] = version(name)
        except PackageNotFoundError:  # built locally, or on a path of its own
            by_distribution[name] = "unknown"
    return by_distribution


def settings(names: Sequence[str]) -> dict[str, Any]:
    """Return engine -> mode -> the settings that these entries' figures depend on."""
    return {
        engine: import_module(ENGINES[engine].entry_module).SETTINGS
        for engine in _engines(names)
    }


def held(
    names: Sequence[str], form: str | None, file: Path | None
) -> dict[str, str | None]:
    """Return engine -> how it holds the target's matrices, or the GGUF file that it
    reads; None = in the dtype of the run.
    """
    kind = file.name if file else FORMS[form] if form else None
    return {engine: kind or ENGINES[engine].dtype for engine in _engines(names)}


def _engines(names: Sequence[str]) -> list[str]:
    return [
        engine
        for engine in ENGINES
        if any(name.partition(".")[0] == engine for name in names)
    ]


def _missing(package: Package) -> list[str]:
    return [module for module in package.modules if find_spec(module) is None]
