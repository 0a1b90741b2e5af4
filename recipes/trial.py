"""A trial of a release: its wheels in a new environment, without a compiler."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch_index
from release_run import ReleaseError, run

COMMANDS = {
    "foreword-server": ("serve", "batch"),
    "foreword-train": ("train", "data", "export"),
    "foreword-lab": ("bench", "certify", "demo", "doctor", "view"),
}
"""Package -> commands that it brings."""
ANSWER = """
from foreword import LLM, SamplingParams
(answer,) = LLM().generate("The history of the", SamplingParams(max_tokens=8))
print(answer.text)
"""
DROP_IN = """
import torch
import foreword
from foreword import bundled
from transformers import AutoModelForCausalLM, AutoTokenizer
model, small = (
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for folder in (bundled.target(), bundled.draft())
)
inputs = AutoTokenizer.from_pretrained(bundled.target())("The history of", return_tensors="pt")
usual = model.generate(**inputs, max_new_tokens=24, do_sample=False)
ours = model.generate(
    **inputs, max_new_tokens=24, do_sample=False, custom_generate=foreword.generate, drafter=small
)
assert torch.equal(usual, ours)
"""
READY_SECONDS = 300
"""Seconds until a server must answer."""


class Trial:
    """An environment outside of the source, whose programs find no compiler."""

    def __init__(self, folder: Path, torch: str) -> None:
        """Make the environment, with this build of torch."""
        run([sys.executable, "-m", "venv", "env"], folder)
        self.folder = folder
        self.python = str(folder / "env" / "bin" / "python")
        self.command = str(folder / "env" / "bin" / "foreword")
        self.variables = {
            "PATH": str(folder / "env" / "bin"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        option, reason = torch_index.option(gpu=False)
        _say(f"installing the wheels, which takes minutes; {reason}")
        self.pip("install", torch, *option.split())

    def pip(self, *words: str) -> None:
        """Install or remove packages."""
        # git and other programs may be needed here
        run([self.python, "-m", "pip", words[0], "--quiet", *words[1:]], self.folder)

    def run(self, *words: str) -> str:
        """Return what a command of the environment prints."""
        return run(list(words), self.folder, self.variables)

    def try_alone(self, wheels: Mapping[str, Path]) -> None:
        """Try the core alone, then each other package beside it."""
        self.pip("install", str(wheels["foreword"]))
        program = "import foreword; print(foreword.__file__)"
        file = self.run(self.python, "-c", program).strip()
        if not Path(file).is_relative_to(self.folder):
            raise ReleaseError(f"cannot try the wheel: python imports {file}")
        self.run(self.command, "methods")
        for package, commands in COMMANDS.items():
            for word in commands:
                self._refused(word)
            self.pip("install", str(wheels[package]))
            for word in commands:
                self.run(self.command, word, "--help")
            self.pip("uninstall", "--yes", package)

    def try_together(self, wheels: Mapping[str, Path]) -> None:
        """Try all packages: a first answer, the demo, the drop-in for transformers, a
        server and a certificate.
        """
        self.pip("install", *map(str, wheels.values()))
        start = time.perf_counter()
        self.run(self.python, "-c", ANSWER)
        _say(f"first answer: {time.perf_counter() - start:.1f} s with a new process")
        facts = json.loads(self.run(self.command, "env", "--json"))
        _say(f"C code: {facts['native_code']}")
        if not facts["native_code"].startswith("built for "):
            raise ReleaseError(
                f"cannot release: the wheel's C code is {facts['native_code']}"
            )
        _say(self.run(self.command, "demo", "--quick"))
        self.run(self.python, "-c", DROP_IN)
        with self._server() as address:
            _say(f"served: {_completion(address)!r}")
        _say(self.run(self.command, "certify", "--quick"))
        compiled = [*(self.folder / "cache").rglob("*.so")]
        if compiled:
            raise ReleaseError(f"cannot release: the wheel compiled {compiled[0].name}")

    def _refused(self, word: str) -> None:
        """Raise ReleaseError unless a command says which package brings it."""
        try:
            self.run(self.command, word)
        except ReleaseError as error:
            if "pip install 'foreword[" in " ".join(str(error).split()):
                return
            raise
        raise ReleaseError(f"cannot release: foreword {word} ran without its package")

    @contextmanager
    def _server(self) -> Iterator[str]:
        """Run a server of the bundled models, and yield its address."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        log = self.folder / "server.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [self.command, "serve", "--port", str(port)],
                cwd=self.folder,
                env=self.variables,
                stdout=output,
                stderr=output,
            )
        try:
            yield f"http://127.0.0.1:{port}"
        except OSError as error:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise ReleaseError(
                f"cannot release: serve failed: {error}\n{text}"
            ) from None
        finally:
            server.terminate()
            server.wait()


def _completion(address: str) -> str:
    """Return what a server writes, once it is ready."""
    body = json.dumps({"prompt": "The history of", "max_tokens": 8}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", body, headers)
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:
                return json.load(answer)["choices"][0]["text"]
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _say(text: str) -> None:
    sys.stdout.write(f"{text.rstrip()}\n")
    sys.stdout.flush()
