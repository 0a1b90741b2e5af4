"""`foreword train acceptance`: a table for people, the same figures for programs."""

import json

from running import sayings, tokenizer


def test_estimates_are_trained_and_then_used(here, unbarred, tmp_path):
    data = tmp_path / "answers.jsonl"
    texts = [tokenizer().decode(list(text)) for text in sayings()]
    data.write_text(
        "".join(
            json.dumps({"text": f"{number} {text}"}) + "\n"
            for number, text in enumerate(texts * 4)
        )
    )
    asked = (
        "train",
        "acceptance",
        "--data",
        str(data),
        "--tokens",
        "1000",
        "--length",
        "64",
    )
    ran = here(*asked, "--out", str(tmp_path / "odds"))
    assert ran.returncode == 0, ran.stderr
    assert "calibration error" in ran.stdout
    assert f"--budget acceptance:{tmp_path / 'odds'}" in ran.stderr
    quiet = here(*asked, "--out", str(tmp_path / "other"), "--json", "--quiet")
    assert quiet.stderr == ""
    facts = json.loads(quiet.stdout)
    assert set(facts["held_out"]) == {"0", "0.3", "0.5", "0.7", "1", "1.3"}
    said = here(
        "generate",
        "Once upon a time",
        "--budget",
        f"acceptance:{tmp_path / 'odds'}",
        "--max-tokens",
        "8",
    )
    assert said.returncode == 0, said.stderr
    assert here(*asked, "--out", str(tmp_path / "odds")).returncode == 2
