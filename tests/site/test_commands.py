"""Every command of Foreword that a page shows is one that the command line takes."""

import re
import shlex
from itertools import pairwise

import pytest
import typer
from typer.main import get_command

from foreword.cli.app import app
from pages import Block, blocks

FILES = (
    "answer.json",
    "answers.jsonl",
    "chats.jsonl",
    "keys.txt",
    "models.toml",
    "pairs.jsonl",
    "prompts.jsonl",
    "requests.jsonl",
    "sources.jsonl",
    "talk.wav",
)
"""Files that commands read; the command line looks for them before it starts."""
FOLDERS = ("DIR", "adapters", "models")
STARTS = (
    ("foreword",),
    ("pipx", "run", "foreword"),
    ("python", "-m", "foreword"),
    ("uvx", "foreword"),
)
OTHERS = ("|", "&&", "||", ";", "&", ">", "<", "2>")
"""Words of the shell that end a command."""


def commands(block: Block) -> list[list[str]]:
    """Return the arguments of each command of Foreword in a block."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return [
        arguments
        for line in lines
        for words in split(shlex.split(line, comments=True))
        if (arguments := arguments_of(words))
    ]


def split(words: list[str]) -> list[list[str]]:
    """Return the commands of a line of the shell."""
    found: list[list[str]] = [[]]
    for word in words:
        if word in OTHERS:
            found.append([])
        else:
            found[-1].append(word)
    return found


def arguments_of(words: list[str]) -> list[str]:
    """Return what Foreword is given by a command; nothing if it is another program."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    for start in STARTS:
        if tuple(words[: len(start)]) == start:
            return words[len(start) :]
    return []


def made_by(arguments: list[str]) -> set[str]:
    """Return what a command writes; it must not exist before."""
    writes = ("--out", "-o", "--json", "--html", "--record")
    pairs = pairwise(arguments)
    return {value for option, value in pairs if option in writes}


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
    for name in FOLDERS:
        (tmp_path / name).mkdir(parents=True)
    for written in made_by(arguments):
        (tmp_path / written).parent.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if name not in made_by(arguments):
            (tmp_path / name).write_text("{}\n", encoding="utf-8")
    assert parse(arguments)


def test_option_that_does_not_exist_is_refused():
    with pytest.raises(Exception, match="No such option"):
        parse(["bench", "--no-such-option"])
