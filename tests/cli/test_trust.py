"""Code of a model's folder runs where the option says so, and nowhere else."""

import json
import sys

import pytest

from folders import copied
from foreword import bundled

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

(Path(__file__).parent / "ran").touch()


class StrangeConfig(LlamaConfig):
    model_type = "strange"


class StrangeModel(LlamaForCausalLM):
    config_class = StrangeConfig
"""


COPIES = "transformers_modules"
COMMANDS = {
    "generate": "generate - --raw --model stranger --max-tokens 3 -t 0 --no-stats",
    "doctor": "doctor stranger --model stranger --prompts 1 --max-tokens 4",
    "bench": (
        "bench --model stranger --draft stranger --limit-prompts 1 --max-tokens 4 -t "
        "0 --method lm"
    ),
    "limit": "bench limit --quick --model stranger --context 8",
    "rules": (
        "bench rules --model stranger --draft stranger --limit-prompts 1 "
        "--max-tokens 4 -t 1 --nodes 1"
    ),
    "train": (
        "train lm --model stranger --data data.jsonl --out draft --steps 1 --prompts "
        "1 --held-out 1 --hidden 64 --length 32 --batch 1 --device cpu"
    ),
}


@pytest.fixture
def stranger(tmp_path):
    """The bundled draft model as a kind that only code in its own folder knows."""
    folder = copied(
        bundled.draft(),
        tmp_path / "stranger",
        model_type="strange",
        architectures=["StrangeModel"],
        auto_map={
            "AutoConfig": "strange.StrangeConfig",
            "AutoModelForCausalLM": "strange.StrangeModel",
        },
    )
    (folder / "strange.py").write_text(CODE)
    return folder


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Where transformers copies such code and runs it; the next test imports it."""
    folder = tmp_path / "modules"
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder)
    )
    yield folder
    for name in [name for name in sys.modules if name.startswith(COPIES)]:
        del sys.modules[name]


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_command_runs_code_of_a_folder_only_if_trusted(
    command, stranger, modules, here, monkeypatch
):
    # forwards are timed for less long than they should be
    monkeypatch.setattr("foreword_lab.bench.roofline.limit.QUICK_SECONDS", 0.3)
    texts = [
        f"{number} and {word}"
        for word in ("one", "two", "three")
        for number in range(150)
    ]
    (here.folder / "data.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    words = [word.format(other=bundled.target()) for word in command.split()]
    refused = here(*words, typed="y\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "needs Python code from its own folder" in " ".join(refused.stderr.split())
    assert not (stranger / "ran").exists()
    assert not [*modules.rglob("ran")]
    found = here(*words, "--trust-remote-code", typed="Once upon a time")
    assert "error:" not in found.stderr
    assert found.stdout.strip()
    assert [*modules.rglob("ran")]
