"""Every command of Foreword that a page shows is one that the command line takes."""

import re
import shlex

import pytest
import typer
from typer.main import get_command

from foreword.cli import app
from pages import Block, blocks

OTHERS = ("|", "&&", "||", ";", "&", ">", "<", "2>")
"""Words of the shell that end a command."""


def commands(block: Block) -> list[list[str]]:
    """Return the arguments of each command of Foreword in a block."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    found: list[list[str]] = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while "foreword" in words:
            words = words[words.index("foreword") + 1 :]
            end = next((i for i, word in enumerate(words) if word in OTHERS), None)
            found.append(words[:end])
    return found


def shown() -> list[object]:
    return [
        pytest.param(arguments, id=f"{block.page}:{block.number}:{' '.join(arguments)}")
        for block in [*blocks("console"), *blocks("sh")]
        for arguments in commands(block)
    ]


def parse(arguments: list[str]) -> list[str]:
    """Let the command line read arguments, and return the names of the commands."""
    command = get_command(app)
    context = typer.Context(command, info_name="foreword")
    names: list[str] = []
    while hasattr(command, "commands") and arguments:
        name, command, arguments = command.resolve_command(context, arguments)
        names.append(name)
        with command.make_context(name, list(arguments), parent=context) as context:
            arguments = [*context._protected_args, *context.args]
    return names


def test_pages_show_commands():
    assert len(shown()) > 60


@pytest.mark.parametrize("arguments", shown())
def test_command_of_a_page_is_read(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse(arguments)


def test_option_that_does_not_exist_is_refused():
    with pytest.raises(Exception, match="No such option"):
        parse(["bench", "--no-such-option"])
