"""The shape of the code: small files, small functions, one place for each method, words
for what is public.

Reads the source as text and syntax; knows none of it.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import foreword

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "foreword"
REGISTRY = SOURCE / "draft" / "__init__.py"
TRAIN_OPTIONS = SOURCE / "train" / "registry.py"
KERNELS = SOURCE / "model" / "cuda" / "kernels.py"
FILES = sorted(SOURCE.rglob("*.py"))
FOLDERS = sorted(
    {
        path.parent
        for top in ("src", "tests", "docs")
        for path in (ROOT / top).rglob("*.*")
        if "__pycache__" not in str(path)
    }
)
CORE = """
types sampling estimators prompts errors model draft verify commit scheduler budget speculator engine detokenizer
requests speculators kv_cache llm async_llm
""".split()
APART = """
draft/check draft/cross_vocab draft/ensemble draft/heads draft/lookup draft/none draft/online draft/self_speculative
draft/tree/sampled draft/tree/shapes verify/block verify/kseq verify/residual verify/specinfer verify/traversal
verify/without_replacement budget/learned budget/stopping model/architectures model/cpu model/cuda model/head_layers
model/loading model/pool/dynamic_rope model/pool/hooks model/pool/positions model/pool/seq2seq model/probe/excerpt
model/quantized model/seq2seq model/shared_encoder model/skip model/view model/vision model/weights sampling/filters
types/method types/round types/speech
""".split()
"""What serves one method, rule, budget or kind of model, is only faster, or only
reports: not part of the core.
"""
MOST_FILES = 20
"""Files of a folder: what a reader can see at once."""
COMMON_WORDS = {"none", "lm", "layers", "predicted", "quantized", "retrieval", "suffix"}
"""Names of methods that are also words of everyday code; a search for them would say
nothing.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(syntax(path)) if isinstance(node, Function))


def code_lines(function: Function) -> int:
    """Lines of a function, its docstring not counted: saying more must never cost."""
    first = function.body[0]
    said = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) else 0
    return function.end_lineno - function.lineno + 1 - said


def written(path: Path) -> int:
    """Lines of a file that hold code: neither blank, nor a comment, nor a docstring."""
    said = {
        line
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    held = (
        line.strip() for number, line in enumerate(lines(path), 1) if number not in said
    )
    return sum(bool(line) and not line.startswith("#") for line in held)


def positional(function: Function) -> int:
    """Parameters that a caller may pass by position; those after `*` are named at every
    call, and read well.
    """
    names = [
        argument.arg for argument in (*function.args.posonlyargs, *function.args.args)
    ]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def registry() -> dict[str, str]:
    """The methods and where they live, name -> "module:Class", read without importing
    them.
    """
    for node in syntax(REGISTRY).body:
        targets = (
            [node.target]
            if isinstance(node, ast.AnnAssign)
            else getattr(node, "targets", [])
        )
        if any(
            isinstance(target, ast.Name) and target.id == "METHODS"
            for target in targets
        ):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{where(REGISTRY)} has no METHODS = {{...}} of plain strings")


def test_there_is_something_to_look_at():
    assert SOURCE / "engine.py" in FILES


@pytest.mark.parametrize("path", FILES, ids=where)
def test_files_and_functions_are_small(path):
    assert len(lines(path)) <= 400
    # one function a launch, and nothing but numbers and pointers can be given to it
    if path == KERNELS:
        return
    assert {f.name: code_lines(f) for f in functions(path) if code_lines(f) > 50} == {}
    assert {f.name: positional(f) for f in functions(path) if positional(f) > 6} == {}


@pytest.mark.parametrize("path", FILES, ids=where)
def test_buffers_name_their_dtype(path):
    """The default dtype is the process's, and changes while another thread loads a
    model: C would write beyond them.
    """
    if path.relative_to(SOURCE).parts[0] in ("train", "bench", "tune"):
        return
    calls = [node for node in ast.walk(syntax(path)) if isinstance(node, ast.Call)]
    creating = [
        call
        for call in calls
        if ast.unparse(call.func) in ("torch.empty", "torch.zeros", "torch.ones")
    ]
    without = [
        call
        for call in creating
        if all(keyword.arg != "dtype" for keyword in call.keywords)
    ]
    assert [
        ast.unparse(call)
        for call in without
        if call.args and ast.unparse(call.args[0]) not in ("0", "shape")
    ] == []


@pytest.mark.parametrize("path", FILES, ids=where)
def test_nothing_is_left_to_do_and_only_the_command_line_prints(path):
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [line for line in lines(path) if unfinished.search(line)] == []
    calls = (node.func for node in ast.walk(syntax(path)) if isinstance(node, ast.Call))
    prints = [
        call.lineno
        for call in calls
        if isinstance(call, ast.Name) and call.id == "print"
    ]
    assert prints == [] or path.relative_to(SOURCE).parts[0].startswith("cli")


def test_the_core_stays_small():
    """The loop and what it stands on: 450 lines of it share keys and values among
    requests.
    """
    apart = [SOURCE / name for name in APART]
    assert all(place.is_dir() or place.with_suffix(".py").exists() for place in apart)
    core = [
        path
        for path in FILES
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") in CORE
    ]
    core = [
        path
        for path in core
        if not any(
            path.is_relative_to(one) or path.with_suffix("") == one for one in apart
        )
    ]
    # pages, traces, grammars and scores are 1,100 of them
    assert sum(map(written, core)) <= 6100


@pytest.mark.parametrize("folder", FOLDERS, ids=where)
def test_a_folder_can_be_seen_at_once(folder):
    assert len([file for file in folder.iterdir() if file.is_file()]) <= MOST_FILES


@pytest.mark.skipif(not REGISTRY.exists(), reason="there are no drafting methods yet")
def test_a_method_is_named_in_its_own_files_and_the_registries_only():
    leaks = []
    for name, place in registry().items():
        home = SOURCE.parent / (place.partition(":")[0].replace(".", "/") + ".py")
        assert home.exists(), (
            f"METHODS sends {name!r} to {place}, and there is no {where(home)}"
        )
        parts = home.parent.glob(f"{home.stem}_*.py")
        homes = {
            home,
            *parts,
            REGISTRY,
            TRAIN_OPTIONS,
            *(SOURCE / place / home.name for place in ("train/methods", "native")),
        }
        if name in COMMON_WORDS:
            continue
        word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
        elsewhere = (path for path in FILES if path not in homes)
        leaks += [
            f"{name}: {where(path)}"
            for path in elsewhere
            if any(map(word.search, lines(path)))
        ]
    assert leaks == []


def test_what_is_public_is_described():
    public = {
        name: getattr(foreword, name) for name in getattr(foreword, "__all__", ())
    }
    described = (inspect.isclass, inspect.isroutine)
    silent = [
        name
        for name, thing in public.items()
        # A dataclass without words gets its signature as a docstring; that describes
        # nothing.
        if any(kind(thing) for kind in described)
        and (thing.__doc__ or f"{name}(").startswith(f"{name}(")
    ]
    assert silent == []
