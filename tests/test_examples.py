"""Every example runs without arguments, warnings as errors, and so does the Python in
the README and in the guide to new methods. `make test-all` runs all in processes.
"""

import copy
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import foreword
import starter
from foreword import bundled
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.errors import ModelError
from foreword.model import Mode, Model
from foreword.model.executors.registry import BACKENDS
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.kv.reads import Read
from foreword.options import EXECUTORS
from foreword.types import SamplingParams
from running import Case, engine, finish, outputs, plain, prompts, target

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "quickstart": "+ is an accepted draft token",
    "drop_in": "enable(): same text True",
    "batch": "the same texts one by one: True",
    "asynchronous": "the same text: True",
    "rounds": "a bonus token",
    "serving": "the same text as plain: True",
    "structured": "the same text without drafts: True",
}
"""What an example must print; others need only print something."""
ALONE = ("serving",)
"""They run in a process of their own, in `make test-all`: its threads must end."""
LINES = 60
"""Most lines of an example."""


def test_there_are_examples_and_they_are_short():
    assert {path.stem for path in EXAMPLES} >= set(SAYS)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES}
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES} == {}


def check(path: Path, output: str) -> None:
    """Check what an example printed."""
    assert SAYS.get(path.stem, "\n") in output
    assert "False" not in output


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem) for path in EXAMPLES if path.stem not in ALONE],
)
def test_example_does_what_it_says(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    check(path, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_as_a_process(path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    warnings = ("-W", "error::UserWarning", "-W", "error::RuntimeWarning")
    run = subprocess.run(
        [sys.executable, *warnings, str(path)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    check(path, run.stdout)


def program(page: str, names: dict[str, object]) -> dict[str, object]:
    """Run all Python blocks of a page in one namespace with `names`; returns it."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$",
        (ROOT / page).read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    assert len(blocks) > 1, "no blocks were found"
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


def test_the_readme(capsys):
    def load(path: Path) -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    inputs = AutoTokenizer.from_pretrained(bundled.target())(
        "The capital of France is", return_tensors="pt"
    )
    model = load(bundled.target())
    own = type(model).generate
    names = {
        "model": model,
        "small_model": load(bundled.draft()),
        "inputs": inputs,
        "ids": inputs["input_ids"],
    }
    try:
        # a call that could not be served would warn, and a warning is an error
        names = program("README.md", names)
        assert type(model).generate is not own
    finally:
        foreword.disable()
    assert type(model).generate is own
    said = capsys.readouterr().out
    assert said.startswith(
        foreword.LLM(method="none").chat(names["messages"], names["params"]).text + "\n"
    )
    assert set(names["delta"].origins) <= {"accepted", "bonus"}


def test_the_page_on_structured_output(capsys):
    names = program("docs/structured-output.md", {})
    assert set(json.loads(capsys.readouterr().out)) == {"name", "city"}
    assert re.fullmatch(r"\d{3}-\d{4}", names["phone"][0].text)
    assert re.fullmatch(r"\d{1,3} \+ \d{1,3}", names["total"][0].text)


def test_the_method_in_the_guide_is_a_method():
    names = program("docs/add-a-method.md", {})
    echo, model = names["METHODS"].pop("echo")(), target("bfloat16")
    sampling = [
        SamplingParams(temperature=t, seed=5, max_tokens=24, ignore_eos=True)
        for t in (0.0, 0.9)
    ]
    requests = [Case(prompt, params) for prompt in prompts() for params in sampling]
    loop = engine(model, echo, 3)
    answers = finish(loop, requests)
    assert outputs(answers) == outputs(plain(model, requests))
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in answers) > 0


def extended(monkeypatch) -> dict[str, object]:
    """Run the guide to backends; its module is taken back with the test."""
    for table in (BACKENDS, EXECUTORS):
        monkeypatch.setitem(table, "whole", "")
    names = program("docs/extend/backend.md", {})
    module = ModuleType("my_package.whole")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "my_package.whole", module)
    return names


def test_the_memory_in_the_guide_changes_its_sequence_alone(monkeypatch):
    names = extended(monkeypatch)
    model = copy.copy(target("float32"))
    backend = PoolBackend(model.hf, Mode.TREE, [names["SpeakerMemory"]()])
    texts = [list(prompt[:20]) for prompt in prompts()[:2]]
    for row in range(len(texts)):
        backend.open(row, 64)
    reads = [Read(row, 0, text, keep=1) for row, text in enumerate(texts)]
    before = backend.read(reads)
    hidden = model.hf.config.hidden_size
    backend.give(1, names["Speaker"](torch.full((hidden,), 0.1)))
    after = backend.read(reads)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])
    backend.close(1)
    with pytest.raises(ModelError, match="reads text only"):
        backend.give(0, object())


@pytest.mark.slow
def test_the_executor_in_the_guide_writes_the_same_text(monkeypatch):
    extended(monkeypatch)
    own = Model.load(starter.target(), dtype="float32", device="cpu", backend="whole")
    assert own.capability.backend == "whole"
    sampling = [
        SamplingParams(temperature=t, seed=5, max_tokens=24, ignore_eos=True)
        for t in (0.0, 0.9)
    ]
    requests = [Case(prompt, params) for prompt in prompts() for params in sampling]
    draft = NgramDrafter()
    answers = finish(engine(own, draft, 3), requests)
    assert outputs(answers) == outputs(plain(target("float32"), requests))
    assert sum(answer.request.stats.accepted for answer in answers) > 0
