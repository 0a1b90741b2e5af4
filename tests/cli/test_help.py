"""Usage errors say what is wrong, and the program starts as a module."""

import pytest

import foreword


def test_the_module_is_the_program(shell):
    found = shell("--version")
    assert (found.returncode, found.stdout) == (0, f"foreword {foreword.__version__}\n")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["generate", "--nonsense"], ["generate", "x", "-k"]]
)
def test_usage_errors_are_2_and_say_what(here, words):
    found = here(*words)
    assert found.returncode == 2
    assert found.stdout == ""
    assert words[-1] in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "words",
    [("generate", "caf\udce9"), ("generate", "x", "--stop", "\ud800"), ("\udcff",)],
)
def test_argument_that_is_not_text_is_refused(here, words):
    """Python reads bytes that are not UTF-8 as such lone surrogates."""
    found = here(*words)
    shown = ascii(words[-1]).strip("'")
    assert (found.returncode, found.stdout) == (2, "")
    said = f"cannot read argument {len(words)}: it is not UTF-8 text: {shown}"
    assert said in found.stderr
