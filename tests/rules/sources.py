"""The source as text and syntax: files, functions, and what makes a file hard to read."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    path.name: path
    for path in sorted(ROOT.glob("packages/*/src/*"))
    if (path / "__init__.py").exists()
}
"""Name of a package, as it is imported -> its folder."""
SOURCE = PACKAGES["foreword"]
FILES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))

PRONOUNS = frozenset("one found own given kept place asked wanted beside".split())
"""What names nothing: an assigned name is a noun of docs/glossary.md or of the field."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def where(path: Path) -> str:
    """Return the path as it stands in messages: relative to the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def lines(path: Path) -> list[str]:
    """Return the lines of a file."""
    return path.read_text(encoding="utf-8").splitlines()


@cache
def syntax(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[Function]:
    """Yield all functions of a file, inner ones too."""
    return (node for node in ast.walk(syntax(path)) if isinstance(node, Function))


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def code(path: Path) -> list[str]:
    """Return the lines that hold code: not blank, no comment, no docstring."""
    texts = [node for node in ast.walk(syntax(path)) if is_text(node)]
    described = {
        number for node in texts for number in range(node.lineno, node.end_lineno + 1)
    }
    kept = [
        line for number, line in enumerate(lines(path), 1) if number not in described
    ]
    return [line for line in kept if line.strip() and not line.strip().startswith("#")]


def function_lines(function: Function) -> int:
    """Return the lines of a function without its docstring."""
    first = function.body[0]
    text = first.end_lineno - first.lineno + 1 if is_text(first) else 0
    return function.end_lineno - function.lineno + 1 - text


def width(path: Path) -> float:
    """Return the mean width of a line of code, in characters."""
    held = code(path)
    return sum(map(len, held)) / max(1, len(held))


def wide_assignments(path: Path) -> list[int]:
    """Return the lines that assign more than two values to more than two names."""
    return [
        node.lineno
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and len(node.targets[0].elts) > 2
    ]


def dense_comprehensions(path: Path) -> list[int]:
    """Return the lines of comprehensions with two `for` and an `if`."""
    return [
        node.lineno
        for node in ast.walk(syntax(path))
        if isinstance(node, Comprehension)
        and len(node.generators) > 1
        and any(part.ifs for part in node.generators)
    ]


def pronouns(path: Path) -> list[str]:
    """Return parameters and assigned names that are no nouns, comprehensions aside."""
    tree = syntax(path)
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, Comprehension)
        for part in outer.generators
        for node in ast.walk(part.target)
    }
    assigned = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and id(node) not in inside
    ]
    parameters = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return [name for name in (*assigned, *parameters) if name in PRONOUNS]
