"""The tutorial works: its commands and its Python run in order, as a reader would.

Commands and code come from the page. What takes minutes there is made smaller by a
table, so a command that the page no longer has is noticed.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import pytest

from command import Here, Shell
from foreword import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
ADDRESS = "http://127.0.0.1:8000"
"""Where the page's server listens; the test's takes a free port."""
INSTALLS = ("python3 -m venv", "pip install")
"""Beginnings of commands that are not run: what they install is here."""
APART = ("foreword train",)
"""Commands with a process of their own: a training keeps the memory that it frees."""
SMALLER = {
    "foreword tune method --minutes 1": "foreword tune method --minutes 0.1 "
    "--method ngram --max-tokens 16",
    "--out answers.jsonl --max-tokens 64": "--out answers.jsonl --max-tokens 8",
    "--length 256 --batch 4 --steps 400": "--length 64 --batch 1 --steps 6 --prompts 2",
    "foreword doctor draft": "foreword doctor draft --prompts 2 --max-tokens 8",
    "foreword serve --draft draft": "foreword serve --draft draft --port 0",
}
"""Part of a command on the page -> what the test runs."""


@dataclass
class Walk:
    """A reader who follows the page in a folder of their own."""

    here: Here
    shell: Shell
    names: dict[str, object] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    """Output of each command, and of each Python block by its number."""
    used: set[str] = field(default_factory=set)
    server: subprocess.Popen[str] | None = None
    address: str = ADDRESS

    def follow(self, page: str) -> None:
        """Run all blocks of a page."""
        for number, (language, text) in enumerate(BLOCK.findall(page)):
            if language == "python":
                self.said[f"block {number}"] = self.python(text, f"block {number}")
            else:
                assert language == "console", f"a block of {language} is not run"
                for command in COMMAND.findall(text):
                    self.said[command] = self.run(command)

    def python(self, text: str, name: str) -> str:
        """Run a Python block after the ones before it; return what it prints."""
        code = text.replace(ADDRESS, self.address)
        with redirect_stdout(io.StringIO()) as said:
            exec(compile(code, f"{PAGE.name}, {name}", "exec"), self.names)
        return said.getvalue()

    def run(self, command: str) -> str:
        """Run one command, smaller where the table says so; return its output."""
        if command.startswith(INSTALLS):
            return ""
        for large, small in SMALLER.items():
            if large in command:
                self.used.add(large)
                command = command.replace(large, small)
        words = shlex.split(command.replace("\\\n", " "))
        if words[0] == "curl":
            return self.curl(words)
        assert words[0] == "foreword", command
        if words[1] == "serve":
            return self.serve(words[1:])
        runner = self.shell if command.startswith(APART) else self.here
        ended = runner(*words[1:])
        fine = (0, 1) if words[1] == "doctor" else (0,)
        assert ended.returncode in fine, ended.stderr
        return ended.stdout + ended.stderr

    def serve(self, words: list[str]) -> str:
        """Start the server; return what it says until it is ready."""
        self.server = self.shell.start(*words)
        said = ""
        for line in self.server.stderr or ():
            said += line
            if found := re.search(r"the page: (\S+)/\n", line):
                self.address = found[1]
                return said
        pytest.fail(f"the server did not start: {said}")

    def curl(self, words: list[str]) -> str:
        """Send a request with curl; where there is none, the same one without it."""
        words = [word.replace(ADDRESS, self.address) for word in words]
        if shutil.which("curl"):
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            return done.stdout
        body = words[words.index("-d") + 1]
        return httpx.post(words[2], content=body, timeout=60).text

    def end(self) -> None:
        """End the server as Ctrl-C does."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            Shell.rest(self.server)


@pytest.fixture
def walk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unchecked: None,
) -> Iterator[Walk]:
    monkeypatch.chdir(tmp_path)
    found = Walk(Here(tmp_path, monkeypatch, capsys), Shell(tmp_path))
    yield found
    found.end()


def test_the_tutorial_works(walk: Walk) -> None:
    walk.follow(PAGE.read_text(encoding="utf-8"))
    assert walk.used == set(SMALLER)
