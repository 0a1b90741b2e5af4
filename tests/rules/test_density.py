"""Files, functions and lines are small; what is not yet may only get smaller."""

import measured
import ratchet
import whole
from sources import FILES, ROOT, SOURCE, functions, where

KERNELS = {*(SOURCE / "model" / "executors" / "cuda").glob("*kernels.py")}
"""One function a launch, which takes nothing but numbers and pointers."""
MOST_FILES = 20
"""Files of a folder: what a reader can see at once."""
MOST_PARAMETERS = 6
"""Parameters that a caller may pass by position."""


def positional(function):
    """Those after `*` are named at every call, and read well."""
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_file_gets_larger_or_denser():
    assert ratchet.worse(ratchet.files(), ratchet.recorded()["files"]) == []


def test_a_round_and_a_chat_request_run_no_more_code_than_before():
    now = measured.measure()["paths"]
    assert ratchet.longer(now, ratchet.recorded()["paths"]) == []


def test_the_whole_gets_no_larger():
    now = ratchet.numbers()["whole"]
    assert ratchet.worse(now, ratchet.recorded()["whole"]) == [], whole.ROOM


def test_what_grows_is_named_and_the_limit_stays():
    before = {"src": {"lines": 10, "classes": 3}, "tests": {"lines": 5}}
    now = {"src": {"lines": 11, "classes": 2}, "tests": {"lines": 5}}
    assert ratchet.worse(now, before) == ["src: lines is 11, and may be 10"]
    assert ratchet.lower(now, before)["src"] == {"lines": 10, "classes": 2}


def test_functions_have_few_positional_parameters():
    many = [
        f"{where(path)}: {function.name}"
        for path in FILES
        for function in functions(path)
        if path not in KERNELS and positional(function) > MOST_PARAMETERS
    ]
    assert many == []


def test_a_folder_can_be_seen_at_once():
    files = [
        path
        for top in ("packages", "tests", "docs")
        for path in (ROOT / top).rglob("*.*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    counts: dict[str, int] = {}
    for path in files:
        counts[where(path.parent)] = counts.get(where(path.parent), 0) + 1
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}
