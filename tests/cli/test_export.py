"""`foreword export`: writes a folder, and says on stdout what to type next."""

import json

import starter
from foreword.train.registry import EagleOptions
from running import shelf

HEAD = EagleOptions(unroll=2, draft_vocab=400)


def test_the_command_says_how_to_start_the_engine(here, tmp_path):
    out = tmp_path / "out"
    ran = here(
        "export",
        str(shelf(HEAD)),
        "--model",
        str(starter.target()),
        "--for",
        "vllm",
        "--out",
        str(out),
    )
    assert ran.returncode == 0, ran.stderr
    assert "all that vllm needs" in ran.stderr
    told = json.loads(
        ran.stdout.partition("--speculative-config ")[2].strip().strip("'")
    )
    assert told == {"method": "eagle3", "model": str(out), "num_speculative_tokens": 5}
    again = here(
        "export",
        str(shelf(HEAD)),
        "--model",
        str(starter.target()),
        "--for",
        "vllm",
        "--out",
        str(out),
    )
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_json_has_the_same_facts(here, tmp_path):
    facts = json.loads(
        here(
            "export",
            str(shelf(HEAD)),
            "--model",
            str(starter.target()),
            "--for",
            "sglang",
            "-o",
            str(tmp_path / "x"),
            "--json",
        ).stdout
    )
    assert (facts["method"], facts["tensors"]) == ("eagle", 15)
    assert "--speculative-algorithm EAGLE3" in facts["command"]
