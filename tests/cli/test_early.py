"""Help, wrong options and commands without a model answer before torch is imported."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args

import pytest
import typer

import foreword
from command import Ended, run_apart
from foreword import LLM, Recording, SamplingParams
from foreword.cli.app import app
from foreword.cli.common import options
from foreword.draft import METHODS
from foreword.errors import InvalidRequest
from foreword.model.probe.probe import backend_named
from foreword.options import ModelOptions
from foreword_lab.bench.inflate.model import SHAPES
from foreword_lab.bench.lineup import ENTRIES
from foreword_lab.commands.bench_options import row_names
from foreword_train.optimizers import KINDS

OPTIONS = {one.name: one.metadata["described"] for one in fields(ModelOptions)}
BACKENDS = OPTIONS["backend"].choices
WRONG = {
    "generate x --method sufix": "Did you mean 'suffix'?",
    "generate x --method 'cascade(suffix, ml)'": "cannot use method 'ml'",
    "generate x --stop ''": "stop must be non-empty",
    "generate x --method lm(": "cannot read the method 'lm('",
    "generate x --rule machen": "Did you mean 'match'?",
    "generate x --budget adaptiv": "Did you mean 'adaptive'?",
    "generate x --nodes 65": "nodes must be",
    "generate x --nodes 2 --budget adaptive": "Give one",
    "generate x --temperature -1": "temperature must be in [0, 100]",
    "generate x --temperature nan": "temperature must be in [0, 100]",
    "generate x --top-p 0": "top_p must be in (0, 1]",
    "generate x --min-p 2": "min_p must be in [0, 1]",
    "generate x --top-k -1": "top_k must be",
    "generate x --max-tokens 0": "max_tokens must be",
    "generate x --seed -1": "seed must be",
    "generate x --dtype float64": "float64",
    "generate x --device gpu": "'gpu'",
    "generate x --device cuda:one": "'cuda:one'",
    "generate x --backend fast": "fast",
    "generate x --model ./nowhere": "./nowhere",
    "generate x --draft ./nowhere": "./nowhere",
    "chat --temperature 101": "temperature must be",
    "chat --method sufix": "Did you mean 'suffix'?",
    "inspect ./nowhere": "./nowhere",
    "serve one -m two": "cannot use both 'one' and '--model' 'two'",
    "doctor one -d two": "cannot use both 'one' and '--draft' 'two'",
    "export --for vllm --out new": "Give '--draft'",
    "inspect --backend fast": "fast",
    "doctor ./nowhere": "./nowhere",
    "doctor --method sufix": "Did you mean 'suffix'?",
    "bench --method sufix": "Did you mean 'suffix'?",
    "bench --budget adaptiv": "Did you mean 'adaptive'?",
    "bench --inflate llama-9b": "llama-9b",
    "bench --peers vllm": "vllm",
    "bench --draft ./nowhere": "./nowhere",
    "bench --plot nowhere/new.png": "cannot write",
    "demo --temperature -1": "temperature must be",
    "index data.jsonl --out data.jsonl/new": "cannot create",
    "index data.jsonl --out new --model ./nowhere": "./nowhere",
    "export ./nowhere --for vllm --out new": "./nowhere",
    "export head --for vllm --out data.jsonl": "exists already",
    "push ./nowhere ORG/NAME": "./nowhere",
    "train lm --data nothing.jsonl --out new": "nothing.jsonl: no such file",
    "train lm --data data.jsonl --out data.jsonl/new": "cannot create",
    "train lm --data data.jsonl --out new --loss tvv": "Did you mean 'tv'?",
    "train lm --data data.jsonl --out new --optimizer adam": "adam",
    "train lm --data data.jsonl --out new --lr 0": "it must be above 0",
    "train lm --data data.jsonl --out new --device gpu": "'gpu'",
    "train lm --data data.jsonl --out new --model ./nowhere": "./nowhere",
    "train lm --data data.jsonl --out new --draft ./nowhere": "./nowhere",
    "data regenerate --data nothing.jsonl --out new": "nothing.jsonl: no such file",
    "data regenerate --data data.jsonl --out nowhere/new": "cannot write",
    "data regenerate --data data.jsonl --out new -t -1": "temperature must be",
}
REFUSED = {tuple(shlex.split(words)): part for words, part in WRONG.items()}


def commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all below it."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *words, name)


HELP = [(*words, "--help") for words in commands(typer.main.get_command(app))]
LIGHT: dict[tuple[str, ...], str] = {
    ("methods", "--json"): '"name": "suffix"',
    ("--version",): f"foreword {foreword.__version__}",
    ("view", "answer.json"): "passes",
}
"""Commands that need no model, and a part of their output."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Ended]:
    """All commands in one process that has imported nothing, the lightest first."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "data.jsonl").write_text('{"text": "A text to learn from."}\n')
    params = SamplingParams(seed=7, max_tokens=4, trace=True)
    with LLM(nodes=4) as llm:
        answer = llm.generate("The river", params)[0]
        Recording.of(llm, params, answer).write(folder / "answer.json")
    before = {path.name for path in folder.iterdir()}
    asked = (*HELP, *REFUSED, *LIGHT)
    found = run_apart(asked, folder)
    assert {path.name for path in folder.iterdir()} == before
    return dict(zip(asked, found, strict=True))


def test_help_imports_nothing_heavy_and_shows_examples(ended):
    for words in HELP:
        found = ended[words]
        assert (found.code, found.heavy) == (0, []), words
        assert re.search(r"Examples\s+\$ foreword", found.output), words


def test_help_lists_every_command(ended):
    found = set(re.findall(r"│ (\w+)\s", ended["--help",].output))
    assert {words[0] for words in HELP} - {"--help"} <= found
    assert {("generate",), ("chat",), ("train", "lm")} <= {words[:-1] for words in HELP}


def test_wrong_option_is_refused_without_torch(ended):
    for words, part in REFUSED.items():
        found = ended[words]
        assert found.code in (1, 2), words
        assert part in found.output, words
        assert "Traceback" not in found.output, words
        assert "--debug" not in found.output, words
        assert found.heavy == [], words


def test_commands_without_a_model_do_not_load_torch(ended):
    for words, part in LIGHT.items():
        found = ended[words]
        assert (found.code, found.heavy) == (0, []), words
        assert part in found.output, words
    assert all(name in ended["methods", "--json"].output for name in METHODS)


def test_rows_of_the_benchmark_are_known_early():
    assert set(row_names()) >= {*ENTRIES, *METHODS}


def test_names_in_options_are_those_of_the_library():
    with pytest.raises(InvalidRequest, match=", ".join(BACKENDS)):
        backend_named("fast")
    assert get_args(options.SHAPES) == ("family", *SHAPES)
    assert get_args(options.OPTIMIZERS) == KINDS


def test_every_command_names_the_target_and_the_draft_alike() -> None:
    for words in commands(typer.main.get_command(app)):
        command: Any = typer.main.get_command(app)
        for word in words:
            command = command.commands[word]
        options = {name for one in command.params for name in one.opts}
        named = options & {"--model", "-m", "--target", "--draft", "-d"}
        pairs = {"--model", "-m"}, {"--draft", "-d"}
        assert all(named & pair in (set(), pair) for pair in pairs), words
        assert "--target" not in named, words
