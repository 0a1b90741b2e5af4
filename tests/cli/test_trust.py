"""Code of a model's folder runs where the option says so, and nowhere else, whatever stands on standard input."""

import json
import shutil

import pytest

from foreword import family

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

(Path(__file__).parent / "ran").touch()


class StrangeConfig(LlamaConfig):
    model_type = "strange"


class StrangeModel(LlamaForCausalLM):
    config_class = StrangeConfig
"""


@pytest.fixture
def stranger(shell):
    """The bundled draft model as a kind that only code in its own folder knows."""
    folder = shell.folder / "stranger"
    shutil.copytree(family.draft(), folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.StrangeModel"}
    config |= {"model_type": "strange", "architectures": ["StrangeModel"], "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "strange.py").write_text(CODE)
    return shell


@pytest.mark.filterwarnings("ignore")
def test_code_runs_where_the_option_says_so_alone(stranger):
    home = str(stranger.folder / "home")
    words = ("generate", "-", "--raw", "--model", "stranger", "--max-tokens", "3", "-t", "0", "--no-stats")
    refused = stranger(*words, typed="y\n", HF_HOME=home)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert not [*stranger.folder.rglob("ran")]
    found = stranger(*words, "--trust-remote-code", typed="Once upon a time", HF_HOME=home)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
    assert [*stranger.folder.rglob("ran")]
