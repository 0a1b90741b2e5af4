"""The tutorial works: the page's commands and Python run in order. What takes minutes
is made smaller by a table of its commands.
"""

import io
import json
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
from waiting import line_with

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
SHOWN = re.compile(COMMAND.pattern + r"((?:(?!\$ |```).*\n)*)", re.MULTILINE)
"""A command and the output below it."""
ADDRESS = "http://127.0.0.1:8000"
"""The server of the page; the one of the test takes a free port."""
INSTALLS = ("python3 -m venv", "pip install")
"""Beginnings of commands that are not run: what they install is here."""
APART = ("foreword train",)
"""Commands with a process of their own: a training keeps the memory that it frees."""
SMALLER = {
    "--max-tokens 48": "--max-tokens 8 --limit 40",
    "--batch 2 --steps 200": "--batch 1 --steps 12 --prompts 1",
    "foreword doctor draft": "foreword doctor draft --prompts 2 --max-tokens 8",
    "foreword serve --draft draft": "foreword serve --draft draft --port 0",
}
"""Part of a command on the page -> what the test runs."""
VERDICT = ("✗", "  ")
"""Beginnings of lines that depend on how long the draft was trained."""


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
        found = line_with(r"the page: (\S+)/\n", self.server)
        self.address = found[1]
        return found.string

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


@pytest.mark.slow
def test_the_tutorial_works(walk: Walk) -> None:
    """One test, since each step needs the ones before it."""
    page = PAGE.read_text(encoding="utf-8")
    walk.follow(page)
    assert walk.used == set(SMALLER)
    check_answers(walk)
    check_server(walk)
    check_training(walk)
    assert not_said(page, walk.said) == []


def check_answers(walk: Walk) -> None:
    """Answers are plain's, and drafts were accepted."""
    llm = LLM(method="none")
    for name in ("answer", "drafted"):
        answer = walk.names[name]
        plain = llm.chat(walk.names["messages"], walk.names["params"])
        assert answer.text == plain.text
        assert answer.stats.drafted >= answer.stats.accepted > 0
    greedy = SamplingParams(temperature=0, max_tokens=256)
    for command, said in walk.said.items():
        if command.startswith("foreword generate"):
            prompt = [{"role": "user", "content": shlex.split(command)[2]}]
            assert said.startswith(llm.chat(prompt, greedy).text + "\n")
            assert int(re.search(r"of (\d+) draft tokens accepted", said)[1]) > 0
    assert walk.said["block 3"].endswith("True\n")


def check_server(walk: Walk) -> None:
    """Both clients got plain's text, and the page is there."""
    (said,) = (said for name, said in walk.said.items() if name.startswith("curl"))
    text = json.loads(said)["choices"][0]["message"]["content"]
    assert text == walk.names["reply"].choices[0].message.content
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=900)
    plain = LLM(method="none").chat(walk.names["messages"], params)
    assert text == plain.text
    page = httpx.get(walk.address)
    assert page.status_code == 200
    assert "<h1>Foreword</h1>" in page.text


def check_training(walk: Walk) -> None:
    """The draft learnt something, and the doctor has a verdict on it."""
    folder = walk.here.folder / "draft"
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["settings"]["steps"] == 12
    rows = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = [row["held_out"] for row in map(json.loads, rows) if row["held_out"]]
    assert held_out[-1]["acceptance"] > held_out[0]["acceptance"]
    assert "it loads with" in walk.said["foreword doctor draft"]


def not_said(page: str, said: dict[str, str]) -> list[str]:
    """Return the lines of output on the page that no run wrote, whatever the numbers."""
    missing = []
    for command, shown in SHOWN.findall(page):
        wrote = plainly(said.get(command, ""))
        lines = [one for one in shown.splitlines() if not one.startswith(VERDICT)]
        parts = [part for line in lines for part in line.split("…")]
        missing += [part for part in parts if plainly(part) not in wrote]
    return missing


def plainly(text: str) -> str:
    """Return text with one sign for every number, and single spaces."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", text).split())
