"""Every Python block of the pages runs: block after block of a page is one program."""

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import foreword
import other_tokenizers
import tiny_lora
import tiny_seq2seq
import tiny_vision
import tiny_whisper
from foreword import bundled
from foreword.cli.app import app
from pages import Block, blocks
from serving import running

ELSEWHERE = (
    "README.md",
    "docs/add-a-method.md",
    "docs/extend/backend.md",
    "docs/start/tutorial.md",
    "docs/structured-output.md",
)
"""tests/test_examples.py and test_tutorial.py run these, and look at what they do."""
SLOW = (
    "docs/targets/adapters.md",
    "docs/targets/encoder-decoders.md",
    "docs/targets/gguf.md",
    "docs/targets/speech.md",
    "docs/targets/vision.md",
)
"""Programs of more than ten seconds: `make test-all` runs them."""
WORDS = "A river is a large stream of water.\nA noun names a thing.\n" * 8


def talk(file: Path) -> None:
    """Write a second of a tone."""
    tone = np.sin(np.arange(16_000) / 8) * 8_000
    with wave.open(str(file), "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes(tone.astype("<i2").tobytes())


def adapter(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(bundled.target())
    tiny_lora.save(model, folder, seed=1, size=0.01)


def requests(file: Path) -> None:
    body = {"model": "foreword-family", "max_tokens": 8}
    body["messages"] = [{"role": "user", "content": "Define the word river."}]
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    file.write_text(json.dumps(line | {"body": body}) + "\n", encoding="utf-8")


def gguf(file: Path) -> None:
    run = CliRunner().invoke(app, ["quantize", "--to", "Q8_0", "--out", str(file)])
    assert run.exit_code == 0, run.output


def whisper(folder: Path) -> None:
    tiny_whisper.saved(tiny_whisper.build("v2"), "v2", folder)


PREPARED = {
    "target": lambda path: path.symlink_to(bundled.target()),
    "draft": lambda path: path.symlink_to(bundled.draft()),
    "head": lambda path: path.symlink_to(bundled.head("eagle")),
    "other-tokenizer": other_tokenizers.NEAR.save,
    "adapter": adapter,
    "model.gguf": gguf,
    "t5": lambda path: tiny_seq2seq.saved("t5", path),
    "whisper": whisper,
    "vision-model": lambda path: tiny_vision.saved("qwen2-vl", path),
    "talk.wav": talk,
    "photo.png": lambda path: tiny_vision.picture(64, 48).save(path),
    "notes.txt": lambda path: path.write_text(WORDS, encoding="utf-8"),
    "requests.jsonl": requests,
}
"""Name in the blocks -> what makes it in the working folder."""


def prepare(folder: Path, text: str) -> None:
    """Make the files and folders that blocks name, in quotes."""
    for name in set(re.findall(r'"([\w.-]+)"', text)) & set(PREPARED):
        PREPARED[name](folder / name)


def run(found: list[Block], names: dict[str, object]) -> dict[str, object]:
    """Run blocks in one namespace, which is returned."""
    for block in found:
        where = f"{block.page}, block {block.number}"
        exec(compile(block.text, where, "exec"), names)
    return names


def by_page(language: str) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    for block in blocks(language):
        found.setdefault(block.page, []).append(block)
    return found


PROGRAMS = by_page("python")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else ())
        for page in PROGRAMS
        if page not in ELSEWHERE
    ],
)
@pytest.mark.filterwarnings("ignore:.*its draft tokens are translated")
def test_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = PROGRAMS[page]
    prepare(tmp_path, "".join(block.text for block in found))
    try:
        names = run(found, {})
    finally:
        foreword.disable()
    for value in names.values():
        if isinstance(value, foreword.LLM):
            value.close()


@pytest.mark.parametrize(("page", "found"), by_page("py").items())
def test_clients_of_a_page_run(page, found, tmp_path, monkeypatch):
    """Blocks marked `py` talk to a server; its address here is another."""
    monkeypatch.chdir(tmp_path)
    text = "".join(block.text for block in found)
    prepare(tmp_path, text)
    with foreword.LLM() as llm, running(llm, files=tmp_path / "kept") as server:
        addressed = [
            Block(
                block.page,
                block.number,
                "py",
                block.text.replace("http://127.0.0.1:8000", server.url),
            )
            for block in found
        ]
        names = run(addressed, {})
    assert {"answer", "answers"} & set(names)
