"""The sizes of the whole: what one person has to hold in the head."""

import ast
from pathlib import Path

import grimp
import networkx

from sources import FILES, PACKAGES, ROOT, SOURCE, lines, syntax

ROOM = (
    "Make room: remove what was measured not to pay, a copy (one function for both), a "
    "protocol with one implementation, a function that only forwards, a file that one "
    "file uses"
)
BASES = {"Drafter": "draft/base.py", "DraftBudget": "budget/base.py"}
"""The classes that every method and every budget derives from."""

CORE = (
    *("*.py", "types", "sampling", "verify", "engine", "budget", "api", "draft/tree"),
    *("draft/base.py", "draft/check.py", "draft/lm.py", "draft/lookup/ngram.py"),
    *("model/model.py", "model/backend.py", "model/cost.py", "model/encoder.py"),
    *("model/kv", "model/probe", "model/executors/torch", "model/executors/cache"),
)
"""What a reader has to know of one answer; all else is a part that a registry finds."""


def classes() -> list[ast.ClassDef]:
    """Return all classes of the source."""
    nodes = [node for path in FILES for node in ast.walk(syntax(path))]
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def is_protocol(node: ast.ClassDef) -> bool:
    """Return whether a class is a protocol itself, and not an implementation."""
    names = [ast.unparse(base).partition("[")[0] for base in node.bases]
    return "Protocol" in names


def members(name: str) -> int:
    """Return how many methods and annotated attributes a base class has."""
    tree = syntax(SOURCE / BASES[name])
    known = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    [node] = [node for node in known if node.name == name]
    return sum(isinstance(part, ast.FunctionDef | ast.AnnAssign) for part in node.body)


def largest_group() -> list[Path]:
    """Return the largest set of files that reach each other by imports of any kind."""
    imports = grimp.build_graph(*PACKAGES, cache_dir=None)
    graph = networkx.DiGraph(
        (module, other)
        for module in imports.modules
        for other in imports.find_modules_directly_imported_by(module)
    )
    groups = networkx.strongly_connected_components(graph)
    return [file_of(module) for module in max(groups, key=len)]


def file_of(module: str) -> Path:
    """Return the file of a module or of a package."""
    package, _, rest = module.partition(".")
    path = PACKAGES[package] / rest.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def core() -> dict[str, int]:
    """Return the lines of the core by folder or file."""
    return {part: count(files_of(part)) for part in CORE}


def files_of(part: str) -> list[Path]:
    """Return the files that a part of the core names."""
    folder = SOURCE / part
    return [*folder.rglob("*.py")] if folder.is_dir() else [*SOURCE.glob(part)]


def count(paths: list[Path]) -> int:
    """Return the lines of some files, blank ones too."""
    return sum(len(lines(path)) for path in paths)


def sizes() -> dict[str, dict[str, float]]:
    """Return the sizes, but for what has to be measured."""
    known = classes()
    return {
        "src": {
            "lines": count(FILES),
            "classes": len(known),
            "protocols": sum(map(is_protocol, known)),
            "lines of the largest import group": count(largest_group()),
        },
        "core": {"lines": sum(core().values())},
        "tests": {"lines": count(list((ROOT / "tests").rglob("*.py")))},
        **{name: {"members": members(name)} for name in BASES},
    }
