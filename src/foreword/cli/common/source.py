"""Values that the source text of our modules assigns, read without importing them,
which would load torch.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def value(module: str, name: str) -> Any:
    """Return the value that a module assigns to a name: a literal, the keys of a dict,
    the values of a Literal.

    Without source, or without such a name, the result is an empty tuple.
    """
    body = _body(module)
    node = _assigned(body, name)
    if node is None:
        home = _imported(body, name)
        return value(home, name) if home else ()
    return _literal(module, node)


def table(module: str, name: str) -> dict[str, str]:
    """Return the dict of strings that a module assigns to a name; empty
    without source.
    """
    node = _assigned(_body(module), name)
    return {} if node is None else ast.literal_eval(node)


def attribute(module: str, kind: str, name: str) -> Any:
    """Return the value of a class attribute, inherited ones included: the first base
    that is ours and has it.
    """
    body = _body(module)
    found = next(
        (line for line in body if isinstance(line, ast.ClassDef) and line.name == kind),
        None,
    )
    if found is None:
        home = _imported(body, kind)
        return attribute(home, kind, name) if home else None
    node = _assigned(found.body, name)
    if node is not None:
        return _literal(module, node)
    inherited = (
        attribute(module, base.id, name)
        for base in found.bases
        if isinstance(base, ast.Name)
    )
    return next((one for one in inherited if one is not None), None)


@cache
def _body(module: str) -> list[ast.stmt]:
    package = find_spec("foreword")
    if package is None or package.origin is None:
        return []
    stem = Path(package.origin).parent.joinpath(
        *module.removeprefix("foreword.").split(".")
    )
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        try:
            return ast.parse(path.read_text(encoding="utf-8")).body
        except OSError:
            continue
    return []


def _assigned(body: list[ast.stmt], name: str) -> ast.expr | None:
    for line in body:
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and line.target.id == name
        ):
            return line.value
        if not isinstance(line, ast.Assign):
            continue
        for target in line.targets:
            if isinstance(target, ast.Name) and target.id == name:
                return line.value
            if isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple):
                for one, node in zip(target.elts, line.value.elts, strict=False):
                    if isinstance(one, ast.Name) and one.id == name:
                        return node
    return None


def _imported(body: list[ast.stmt], name: str) -> str | None:
    lines = [line for line in body if isinstance(line, ast.ImportFrom) and line.module]
    ours = (
        line.module
        for line in lines
        if any((one.asname or one.name) == name for one in line.names)
    )
    return next(
        (module for module in ours if module and module.startswith("foreword.")), None
    )


def _literal(module: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Dict):
        return tuple(key.value for key in node.keys if isinstance(key, ast.Constant))
    if isinstance(node, ast.Name):
        return value(module, node.id)
    if isinstance(node, ast.Tuple):
        return tuple(_literal(module, one) for one in node.elts)
    return ast.literal_eval(node.slice if isinstance(node, ast.Subscript) else node)
