"""Images on the command line: before the prompt or the first question."""

import json

import pytest

import tiny_models
import tiny_vision
from foreword import LLM, SamplingParams
from foreword.model import Model

PICTURES = (tiny_vision.picture(40, 24), tiny_vision.picture(24, 40, 1))
LOAD = tuple("--model seeing --dtype float32 --temperature 0 --max-tokens 8".split())


@pytest.fixture
def seeing(here):
    tiny_vision.saved("qwen2-vl", here.folder / "seeing")
    for number, one in enumerate(PICTURES):
        one.save(here.folder / f"{number}.png")
    return here


def test_generate_and_chat_show_the_images_in_their_order(seeing):
    with LLM(seeing.folder / "seeing", dtype="float32") as llm:
        answers = [
            llm.chat(
                tiny_vision.said("What?", *shown),
                SamplingParams(temperature=0, max_tokens=8),
            ).text
            for shown in (PICTURES, PICTURES[::-1], ())
        ]
    assert len(set(answers)) == 3
    images = ("--image", "0.png", "--image", "1.png")
    found = seeing("generate", "What?", *images, *LOAD, "--json")
    assert json.loads(found.stdout)["text"] == answers[0], found.stderr
    found = seeing("generate", "What?", *images[2:], *images[:2], *LOAD, "--json")
    assert json.loads(found.stdout)["text"] == answers[1]
    found = seeing(
        "chat", *images, *LOAD, "--no-stats", typed="What?\n/save kept.json\n"
    )
    assert found.returncode == 0, found.stderr
    kept = json.loads((seeing.folder / "kept.json").read_text())["messages"]
    assert [turn["content"] for turn in kept] == ["What?", answers[0]]


@pytest.mark.parametrize(
    "words", [("generate", "x"), ("chat",)], ids=lambda words: words[0]
)
@pytest.mark.parametrize(
    "model", [(), ("--model", "writing")], ids=["bundled", "folder"]
)
def test_text_models_refuse_images_before_loading(seeing, words, model):
    # which has no weights to load
    tiny_models.build("llama").config.save_pretrained(seeing.folder / "writing")
    seeing.patch.setattr(Model, "load", None)
    found = seeing(*words, "--image", "0.png", *model)
    assert found.returncode == 2
    assert "it reads text only. Use a vision-language model" in found.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("generate", "x", "--image", "none.png"), "no such file exists"),
        (("generate", "x", "--image", "0.png", "--raw"), "both need the chat template"),
        (("generate", "x", "--image", "seeing/config.json", *LOAD), "are no image"),
        (("generate", "x", "--image", "0.png"), "it reads text only"),
        (("chat", "--image", "none.png"), "no such file exists"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_what_cannot_be_shown_is_refused_in_one_line(seeing, words, why):
    found = seeing(*words)
    assert found.returncode == 2
    assert why in found.stderr
    assert "Traceback" not in found.stderr
