"""`foreword quantize`: a folder or a GGUF file in few bits, for other commands."""

import json
import shlex

import pytest

import starter

PROMPT = "The little dog"


@pytest.mark.parametrize(
    ("form", "name"), [("int4", "model"), ("Q8_0", "model.Q8_0.gguf")]
)
def test_what_is_written_can_be_used(here, tmp_path, form, name):
    out = tmp_path / name
    facts = json.loads(
        here(
            "quantize", str(starter.draft()), "--to", form, "--out", str(out), "--json"
        ).stdout
    )
    assert facts["path"] == str(out)
    assert facts["bytes"] < facts["bytes_before"]
    found = here(
        "generate", PROMPT, "-m", str(out), "-t", "0", "--max-tokens", "8", "--json"
    ).stdout
    assert json.loads(found)["tokens"]
    again = here("quantize", str(starter.draft()), "--to", form, "--out", str(out))
    assert again.returncode == 2
    assert str(out) in again.stderr.replace("\n", "")


def test_an_unknown_form_is_refused_with_the_valid_ones(here, tmp_path):
    found = here("quantize", "--to", "Q4_K_M", "--out", str(tmp_path / "x"))
    assert found.returncode == 2
    assert "'Q4_K_M' is not one of 'int4'" in found.stderr
    assert "'Q8_0'" in found.stderr


def test_missing_folder_is_refused_before_loading(here, tmp_path):
    out = tmp_path / "nodir" / "x.gguf"
    found = here("quantize", str(starter.draft()), "--to", "Q8_0", "--out", str(out))
    assert found.returncode == 2
    assert (
        f"cannot write {out}: choose a path in an existing, writable folder"
        in " ".join(found.stderr.split())
    )
    assert "loading" not in found.stderr


def test_the_command_that_is_printed_can_be_pasted(here, tmp_path):
    out = tmp_path / "a model"
    printed = here(
        "quantize", str(starter.draft()), "--to", "int8", "--out", str(out)
    ).stdout
    assert shlex.split(printed)[:4] == ["foreword", "generate", "-m", str(out)]
