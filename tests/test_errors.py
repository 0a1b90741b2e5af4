"""What errors of others say, in errors of ours."""

import pytest

from foreword.errors import named, words


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("no such file.\nCheck the path."), "no such file"),
        (ValueError("  it ends strangely:! .. "), "it ends strangely"),
        (KeyError(), "KeyError"),
        (RuntimeError("\n"), "RuntimeError"),
    ],
)
def test_it_is_one_line_that_can_stand_in_a_sentence(error, said):
    assert words(error) == said


def test_its_name_is_told_once():
    assert named(KeyError("x")) == "KeyError: 'x'"
    assert named(KeyError()) == "KeyError"
