"""Code of a model's folder runs where the option says so, and nowhere else, whatever
stands on standard input.
"""

import json
import shutil

import pytest

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


COMMANDS = {
    "doctor": "doctor stranger --model stranger --prompts 1 --max-tokens 4",
    "tune": (
        "tune layers --model stranger --out mask.json --prompts 1 --max-tokens 4 "
        "--trials 1"
    ),
    "bench": (
        "bench --model stranger --draft stranger --limit-prompts 1 --max-tokens 4 -t "
        "0 --method lm"
    ),
    "limit": "bench --limit --quick --model stranger --context 8",
    "rules": (
        "bench --rules --model stranger --draft stranger --limit-prompts 1 "
        "--max-tokens 4 -t 1 --nodes 1"
    ),
    "train": (
        "train lm --target stranger --data data.jsonl --out draft --steps 1 --prompts "
        "1 --held-out 1 --device cpu"
    ),
    "acceptance": (
        "train acceptance --target {other} --draft stranger --data data.jsonl --out "
        "odds --tokens 1000"
    ),
}


@pytest.fixture
def stranger(shell):
    """The bundled draft model as a kind that only code in its own folder knows."""
    folder = shell.folder / "stranger"
    shutil.copytree(bundled.draft(), folder)
    config = json.loads((folder / "config.json").read_text())
    own = {
        "AutoConfig": "strange.StrangeConfig",
        "AutoModelForCausalLM": "strange.StrangeModel",
    }
    config |= {
        "model_type": "strange",
        "architectures": ["StrangeModel"],
        "auto_map": own,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "strange.py").write_text(CODE)
    return shell


@pytest.mark.filterwarnings("ignore")
def test_code_runs_where_the_option_says_so_alone(stranger):
    home = str(stranger.folder / "home")
    words = (
        "generate",
        "-",
        "--raw",
        "--model",
        "stranger",
        "--max-tokens",
        "3",
        "-t",
        "0",
        "--no-stats",
    )
    refused = stranger(*words, typed="y\n", HF_HOME=home)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert not [*stranger.folder.rglob("ran")]
    found = stranger(
        *words, "--trust-remote-code", typed="Once upon a time", HF_HOME=home
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
    assert [*stranger.folder.rglob("ran")]


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Where transformers keeps copies of such code: one place for this process, which
    imports it once.
    """
    return str(tmp_path_factory.mktemp("modules"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_command_loads_model_with_own_code_only_where_it_is_trusted(
    command, stranger, modules, here, monkeypatch
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    texts = [
        f"{number} and {word}"
        for word in ("one", "two", "three")
        for number in range(150)
    ]
    (here.folder / "data.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    words = [word.format(other=bundled.target()) for word in command.split()]
    refused = here(*words)
    assert refused.returncode == 1
    assert "needs Python code from its own folder" in " ".join(refused.stderr.split())
    assert not [*stranger.folder.rglob("ran")]
    found = here(*words, "--trust-remote-code")
    assert "error:" not in found.stderr
    assert found.stdout.strip()
