"""Other engines than transformers that may take part: which of them are installed, and how their contenders are made.

Knows packages by name and imports none before it is asked to; knows nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from foreword.bench.converted import Source
from foreword.bench.trial import Contender
from foreword.errors import InvalidRequest

GENERATE, ASSISTED, LOOKUP = WAYS = ("generate", "assisted", "lookup")
"""One token at a time; with a draft model; with what the text said before. The second part of a contender's name."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Package:
    """What an engine cannot do without."""

    modules: tuple[str, ...]
    distribution: str
    """Whose version is told in the report."""
    install: str
    contender: str
    """The module of ours whose `contender` makes one, with its SETTINGS."""


ENGINES = {
    "openvino": Package(
        ("openvino", "openvino_genai", "openvino_tokenizers"),
        "openvino-genai",
        "pip install 'foreword[peers]'",
        "foreword.bench.openvino",
    ),
    "llamacpp": Package(
        ("gguf", "llama_cpp"),
        "llama-cpp-python",
        "pip install 'foreword[peers]' llama-cpp-python   (it is compiled, which takes a while)",
        "foreword.bench.llamacpp",
    ),
}
NAMES = tuple(f"{engine}.{way}" for engine in ENGINES for way in WAYS)
"""Every contender, such as "openvino.assisted"."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What is measured, as transformers has it."""

    target: Callable[[], Source]
    draft: Callable[[], Source]
    """Raises InvalidRequest where no draft model was named."""
    note: Callable[[str], None]
    """Gets a line when something takes long."""


def contenders(engines: List[str]) -> tuple[str, ...]:
    """Names of the contenders of these engines, ALL standing for those that are installed.

    Raises InvalidRequest for an engine that does not exist or is not installed, and for ALL where none is.
    """
    for name in engines:
        if name not in (ALL, *ENGINES):
            raise InvalidRequest(f"there is no peer {name!r}; choose from {', '.join((ALL, *ENGINES))}")
    here = [name for name, package in ENGINES.items() if not _missing(package)]
    if ALL in engines and not here:
        raise InvalidRequest(f"no peer is installed; install them with: {ENGINES['openvino'].install}")
    names = [name for name in ENGINES if name in engines or (ALL in engines and name in here)]
    made = tuple(f"{name}.{way}" for name in names for way in WAYS)
    check(made)
    return made


def check(names: List[str]) -> None:
    """Raise InvalidRequest, which says what to install, unless the engines of these contenders are importable."""
    for engine in _engines(names):
        missing = _missing(ENGINES[engine])
        if missing:
            raise InvalidRequest(
                f"{engine} cannot take part without {', '.join(missing)}; install it with: {ENGINES[engine].install}"
            )


def make(name: str, pair: Pair) -> Contender:
    """The contender of this name, one of NAMES; its models are converted when they were not yet."""
    engine, _, way = name.partition(".")
    return import_module(ENGINES[engine].contender).contender(name, way, pair)


def versions(names: List[str]) -> dict[str, str]:
    """The versions of the engines of these contenders, as far as their packages tell."""
    found = {}
    for name in (ENGINES[engine].distribution for engine in _engines(names)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # it was built here, or lies on a path of its own
            found[name] = "unknown"
    return found


def settings(names: List[str]) -> dict[str, Any]:
    """What the figures of these contenders depend on, for the record: by engine, then by way."""
    return {engine: import_module(ENGINES[engine].contender).SETTINGS for engine in _engines(names)}


def _engines(names: List[str]) -> list[str]:
    return [engine for engine in ENGINES if any(name.partition(".")[0] == engine for name in names)]


def _missing(package: Package) -> list[str]:
    return [module for module in package.modules if find_spec(module) is None]
