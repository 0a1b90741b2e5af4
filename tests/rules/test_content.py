"""One place for each method, words for what is public, and no prints, notes to do, or buffers without a dtype."""

import ast
import inspect
import re

import durations
import foreword
from foreword.registry import OWN_METHODS
from sources import FILES, PACKAGES, SOURCE, lines, syntax, where

REGISTRY = SOURCE / "registry.py"
TRAIN_OPTIONS = PACKAGES["foreword_train"] / "registry.py"
COMMON_WORDS = set("auto none lm layers predicted quantized retrieval suffix".split())
"""Names of methods that are also words of everyday code; a search for them would say nothing."""


def calls(path):
    return [node for node in ast.walk(syntax(path)) if isinstance(node, ast.Call)]


def test_there_is_something_to_look_at():
    assert SOURCE / "engine" / "engine.py" in FILES


def test_buffers_name_their_dtype():
    """The default dtype is the process's, and changes while another thread loads a model: C would write beyond them."""
    found = [
        f"{where(path)}: {ast.unparse(call)}"
        for path in FILES
        for call in calls(path)
        if path.is_relative_to(SOURCE) and without_dtype(call)
    ]
    assert found == []


def without_dtype(call: ast.Call) -> bool:
    """Return whether a call creates a buffer with numbers in it, of the default dtype."""
    if ast.unparse(call.func) not in ("torch.empty", "torch.zeros", "torch.ones"):
        return False
    if any(keyword.arg == "dtype" for keyword in call.keywords):
        return False
    return bool(call.args) and ast.unparse(call.args[0]) not in ("0", "shape")


def test_every_duration_is_that_of_a_file():
    root = durations.FILE.parents[1]
    assert [name for name in durations.recorded() if not (root / name).exists()] == []


def test_the_files_to_read_first_have_the_lines_that_the_page_says():
    page = (SOURCE.parents[3] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `foreword/(\S+)` \| (\d+) \|", page, re.MULTILINE)
    assert len(rows) == 12
    sizes = {name: len(lines(SOURCE / name)) for name, _ in rows}
    wrong = [name for name, size in rows if abs(sizes[name] / int(size) - 1) > 0.1]
    assert wrong == []


def test_nothing_is_left_to_do():
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{where(path)}: {line}"
        for path in FILES
        for line in lines(path)
        if unfinished.search(line)
    ]
    assert found == []


def test_only_the_command_line_prints():
    prints = [
        f"{where(path)}:{call.lineno}"
        for path in FILES
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    ]
    assert [
        found for found in prints if not {"cli", "commands"} & {*found.split("/")}
    ] == []


def test_a_method_is_named_in_its_own_files_and_the_registries_only():
    leaks = []
    for name, about in OWN_METHODS.items():
        module, _, _ = about.home.partition(":")
        home = SOURCE.parent / (module.replace(".", "/") + ".py")
        if name in COMMON_WORDS:
            continue
        parts = home.parent.glob(f"{home.stem}_*.py")
        folders = (PACKAGES["foreword_train"] / "methods", SOURCE / "native")
        elsewhere = [folder / home.name for folder in folders]
        homes = {home, *parts, *elsewhere, REGISTRY, TRAIN_OPTIONS}
        word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
        others = [path for path in FILES if path not in homes]
        leaking = [path for path in others if any(map(word.search, lines(path)))]
        leaks += [f"{name}: {where(path)}" for path in leaking]
    assert leaks == []


def test_what_is_public_is_described():
    public = {
        name: getattr(foreword, name) for name in getattr(foreword, "__all__", ())
    }
    described = [
        name
        for name, thing in public.items()
        if inspect.isclass(thing) or inspect.isroutine(thing)
    ]
    # A dataclass without words gets its signature as a docstring; that describes nothing.
    silent = [
        name
        for name in described
        if (public[name].__doc__ or f"{name}(").startswith(f"{name}(")
    ]
    assert silent == []
