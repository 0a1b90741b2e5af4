"""A wrong option is refused before torch is imported: no command makes anybody wait to
be told of a slip.
"""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import foreword
from foreword.bench.inflate.model import SHAPES
from foreword.bench.inflate.t5 import T5_SHAPES
from foreword.bench.lineup import ENTRIES
from foreword.cli.common import early, options
from foreword.draft import METHODS
from foreword.errors import InvalidRequest
from foreword.model.probe.probe import backend_named
from foreword.options import ModelOptions
from foreword.train.optimizers import KINDS

PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from foreword.cli import main
found = []
for words in json.load(sys.stdin):
    sys.argv, err = ["foreword", *words], io.StringIO()
    try:
        with redirect_stderr(err), redirect_stdout(err):
            main()
    except SystemExit as ended:
        found.append((ended.code, " ".join(err.getvalue().split()), "torch" in sys.modules))
print(json.dumps(found))
"""
(BACKENDS,) = [
    one.metadata["described"].choices
    for one in fields(ModelOptions)
    if one.name == "backend"
]
ASKED = ("generate", "x")
TRAINED = ("train", "lm", "--data", "data.jsonl", "--out", "new")
WRONG: dict[tuple[str, ...], str] = {
    (*ASKED, "--method", "sufix"): "Did you mean 'suffix'?",
    (*ASKED, "--method", "fuse(suffix, ml)"): "cannot use method 'ml'",
    (*ASKED, "--method", "lm("): "cannot read the method 'lm('",
    (*ASKED, "--rule", "machen"): "Did you mean 'match'?",
    (*ASKED, "--budget", "adaptiv"): "Did you mean 'adaptive'?",
    (
        *ASKED,
        "--budget",
        "acceptance:nowhere",
    ): "cannot read nowhere: there is no such file or folder",
    (*ASKED, "--nodes", "65"): "nodes must be",
    (*ASKED, "--nodes", "2", "--budget", "adaptive"): "Give one",
    (*ASKED, "--temperature", "-1"): "temperature must be in [0, 100]",
    (*ASKED, "--temperature", "nan"): "temperature must be in [0, 100]",
    (*ASKED, "--top-p", "0"): "top_p must be in (0, 1]",
    (*ASKED, "--min-p", "2"): "min_p must be in [0, 1]",
    (*ASKED, "--top-k", "-1"): "top_k must be",
    (*ASKED, "--max-tokens", "0"): "max_tokens must be",
    (*ASKED, "--seed", "-1"): "seed must be",
    (*ASKED, "--stop", ""): "stop must be non-empty",
    (*ASKED, "--dtype", "float64"): "float64",
    (*ASKED, "--device", "gpu"): "'gpu'",
    (*ASKED, "--device", "cuda:one"): "'cuda:one'",
    (*ASKED, "--backend", "fast"): "fast",
    (*ASKED, "--model", "./nowhere"): "./nowhere",
    (*ASKED, "--draft", "./nowhere"): "./nowhere",
    ("chat", "--temperature", "101"): "temperature must be",
    ("chat", "--method", "sufix"): "Did you mean 'suffix'?",
    ("chat", "--learn", "data.jsonl/new"): "cannot create",
    ("inspect", "./nowhere"): "./nowhere",
    ("inspect", "--backend", "fast"): "fast",
    ("doctor", "./nowhere"): "./nowhere",
    ("doctor", "--method", "sufix"): "Did you mean 'suffix'?",
    ("bench", "--method", "sufix"): "Did you mean 'suffix'?",
    ("bench", "--budget", "adaptiv"): "Did you mean 'adaptive'?",
    ("bench", "--inflate", "llama-9b"): "llama-9b",
    ("bench", "--peers", "vllm"): "vllm",
    ("bench", "--draft", "./nowhere"): "./nowhere",
    ("bench", "--plot", "nowhere/new.png"): "cannot write",
    ("demo", "--temperature", "-1"): "temperature must be",
    ("index", "data.jsonl", "--out", "data.jsonl/new"): "cannot create",
    ("index", "data.jsonl", "--out", "new", "--model", "./nowhere"): "./nowhere",
    ("export", "./nowhere", "--for", "vllm", "--out", "new"): "./nowhere",
    ("export", "head", "--for", "vllm", "--out", "data.jsonl"): "exists already",
    (
        "train",
        "lm",
        "--data",
        "nothing.jsonl",
        "--out",
        "new",
    ): "cannot read nothing.jsonl: there is no such file",
    ("train", "lm", "--data", "data.jsonl", "--out", "data.jsonl/new"): "cannot create",
    (*TRAINED, "--loss", "tvv"): "Did you mean 'tv'?",
    (*TRAINED, "--optimizer", "adam"): "adam",
    (*TRAINED, "--lr", "0"): "it must be above 0",
    (*TRAINED, "--device", "gpu"): "'gpu'",
    (*TRAINED, "--target", "./nowhere"): "./nowhere",
    (*TRAINED, "--draft", "./nowhere"): "./nowhere",
    (
        "train",
        "acceptance",
        "--data",
        "nothing.jsonl",
        "--out",
        "new",
    ): "cannot read nothing.jsonl: there is no such file",
    (
        "train",
        "acceptance",
        "--data",
        "data.jsonl",
        "--out",
        "data.jsonl/new",
    ): "cannot create",
    (
        "data",
        "regenerate",
        "--data",
        "nothing.jsonl",
        "--out",
        "new",
    ): "cannot read nothing.jsonl: there is no such file",
    (
        "data",
        "regenerate",
        "--data",
        "data.jsonl",
        "--out",
        "nowhere/new",
    ): "cannot write",
    (
        "data",
        "regenerate",
        "--data",
        "data.jsonl",
        "--out",
        "new",
        "-t",
        "-1",
    ): "temperature must be",
    ("tune", "layers", "--out", "nowhere/mask.json"): "cannot write",
    ("tune", "layers", "--out", "mask.json", "-t", "-1"): "temperature must be",
    (
        "tune",
        "layers",
        "--out",
        "mask.json",
        "--data",
        "nothing.jsonl",
    ): "cannot read nothing.jsonl: there is no such file",
}


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, ...], tuple[int, str, bool]]:
    """All the wrong commands, one after the other in one process that has imported
    nothing else.
    """
    folder = tmp_path_factory.mktemp("early")
    (folder / "data.jsonl").write_text('{"text": "A text to learn from."}\n')
    source = str(Path(foreword.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([*WRONG]),
        cwd=folder,
        env={"PYTHONPATH": source, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [path.name for path in folder.iterdir()] == ["data.jsonl"]
    return dict(zip(WRONG, json.loads(found.stdout), strict=True))


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_option_is_refused_without_torch(told, words):
    code, said, loaded = told[words]
    assert code in (1, 2)
    assert WRONG[words] in said
    assert "Traceback" not in said
    assert "--debug" not in said
    assert not loaded


def test_rows_of_the_benchmark_are_known_early():
    assert set(early.rows()) >= {*ENTRIES, *METHODS}


def test_the_names_that_options_list_are_those_of_the_library():
    with pytest.raises(InvalidRequest, match=", ".join(BACKENDS)):
        backend_named("fast")
    assert get_args(options.SHAPES) == ("family", *SHAPES, *T5_SHAPES)
    assert get_args(options.OPTIMIZERS) == KINDS


def test_commands_without_a_model_do_not_load_torch(tmp_path):
    words = [["methods", "--json"], ["--version"], ["generate", "--help"]]
    path = str(Path(foreword.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(words),
        cwd=tmp_path,
        env={"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(found.stdout)
    assert [(code, loaded) for code, _, loaded in answers] == [(0, False)] * len(words)
    assert all(name in answers[0][1] for name in METHODS)
