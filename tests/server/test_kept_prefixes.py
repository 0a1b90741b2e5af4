"""Pages of earlier texts outlive the process: same text, prompts not reread."""

import stat
from dataclasses import replace

import pytest
from safetensors.torch import load_file

import starter
from foreword import LLM, InvalidRequest, SamplingParams
from foreword_server.kept_prefixes import PrefixFile
from grids import NEEDS_C

PROMPT = "The river rose in the night and the miller moved his grain upstairs. " * 12
PARAMS = SamplingParams(max_tokens=24, seed=5, nodes=4)


def answered(llm: LLM, tenant: str = "") -> tuple[str, int, int]:
    """Return the text, the prompt tokens that were not read, and those accepted."""
    (found,) = llm.generate([PROMPT], replace(PARAMS, tenant=tenant))
    return found.text, found.stats.cached, found.stats.accepted


@NEEDS_C
def test_a_prompt_is_read_once_for_two_processes(tmp_path):
    with LLM() as first:
        text, cached, _ = answered(first)
        assert cached == 0
        answered(first, "other")
        tokens = PrefixFile(first.target, tmp_path).write()
    with LLM() as second:
        kept = PrefixFile(second.target, tmp_path)
        assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
        assert kept.read() == tokens
        again, cached, accepted = answered(second)
        assert again == text
        assert cached > 64
        assert accepted > 0
        assert answered(second, "third")[1] == 0  # another tenant's are not found
        assert answered(second, "other")[1] == cached


@NEEDS_C
def test_the_newest_pages_are_taken_up_within_the_limit(tmp_path):
    with LLM() as first:
        answered(first)
        PrefixFile(first.target, tmp_path).write()
    with LLM(cache_tokens=128) as second:
        assert PrefixFile(second.target, tmp_path).read() <= 128


@NEEDS_C
def test_another_form_has_another_file_and_a_damaged_one_is_refused(tmp_path):
    with LLM() as llm:
        answered(llm)
        kept = PrefixFile(llm.target, tmp_path)
        kept.write()
        assert load_file(kept.path)
        kept.path.write_bytes(kept.path.read_bytes()[:100])
        with pytest.raises(InvalidRequest, match="Delete the file"):
            kept.read()
        taken = tmp_path / "file"
        taken.touch()
        with pytest.raises(InvalidRequest, match="cannot create"):
            PrefixFile(llm.target, taken / "folder")
    with LLM(kv="int8") as other:
        assert PrefixFile(other.target, tmp_path).path != kept.path
        assert PrefixFile(other.target, tmp_path).read() == 0
    with (
        LLM(starter.target(), dtype="float32", method="none") as small,
        pytest.raises(InvalidRequest, match="cannot keep prefixes of"),
    ):
        PrefixFile(small.target, tmp_path)
