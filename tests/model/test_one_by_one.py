"""Images are decoded one by one: same numbers, memory of one, ended when asked."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny_vision
from foreword import LLM
from foreword.model import load_tokenizer
from foreword.model.vision.processor import load_processor
from foreword.wanted import Abandoned, dropped_when

RUNNABLE = [name for name in tiny_vision.FAMILIES if tiny_vision.missing(name) is None]
PICTURES = [
    tiny_vision.picture(*size) for size in ((72, 40, 1), (33, 31, 2), (72, 40, 3))
]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SIDE, IMAGES = 2000, 12


def url(image: Image.Image) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def asked(*urls: str) -> list[dict[str, object]]:
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "Compare."}]}]


def memory(name: str) -> int:
    """Return bytes of this process: VmRSS, or VmHWM, its peak."""
    line = next(
        line for line in STATUS.read_text().splitlines() if line.startswith(name)
    )
    return 1024 * int(line.split()[1])


@pytest.mark.parametrize("name", RUNNABLE)
def test_tensors_are_those_of_the_processor(name):
    folder = tiny_vision.folder(name)
    with LLM(folder, dtype="float32", method="none") as llm:
        prompt = llm.render(asked(*map(url, PICTURES)))
        plain = load_processor(folder, llm.target.hf.config, load_tokenizer(folder))
    for method in ("process_image", "_prepare_image_like_inputs"):
        vars(plain.image_processor).pop(method)  # transformers' own again
    options = dict(tokenize=True, return_dict=True, return_tensors="pt")
    own = plain.apply_chat_template(
        tiny_vision.said("Compare.", *PICTURES),
        chat_template=plain.chat_template or plain.tokenizer.chat_template,
        add_generation_prompt=True,
        **options,
    )
    assert prompt.tokens == own["input_ids"][0].tolist()
    assert prompt.tensors
    for key, tensor in prompt.tensors.items():
        assert torch.equal(tensor, own[key]), key


@pytest.fixture(scope="module")
def llm():
    with LLM(tiny_vision.folder("qwen2-vl"), dtype="float32", method="none") as llm:
        llm.render(asked(url(PICTURES[0])))
        yield llm


@pytest.mark.skipif(
    not CLEAR.exists(), reason="the peak of memory can be reset on Linux only"
)
def test_many_images_take_the_memory_of_one(llm):
    image = url(Image.new("RGB", (SIDE, SIDE), (9, 9, 9)))
    chat = asked(*[image] * IMAGES)
    CLEAR.write_text("5")
    before = memory("VmRSS")
    llm.render(chat)
    decoded = SIDE * SIDE * 4  # bytes a picture of PIL
    # All at once would take 21 * decoded; a process that has run many tests allocates
    # some of it anew.
    assert memory("VmHWM") - before < 16 * decoded
    assert memory("VmHWM") - before > decoded / 2  # the measure works


def test_work_ends_between_two_images(llm):
    asks = 0

    def left() -> bool:
        nonlocal asks
        asks += 1
        return asks > 5  # three while headers are read, two while images are decoded

    damaged = io.BytesIO()
    Image.fromarray(
        np.random.default_rng(0).integers(255, size=(64, 64, 3), dtype=np.uint8)
    ).save(damaged, "PNG")
    third = (
        "data:image/png;base64," + base64.b64encode(damaged.getvalue()[:-4000]).decode()
    )
    chat = asked(url(PICTURES[0]), url(PICTURES[1]), third)
    with (
        dropped_when(left),
        pytest.raises(Abandoned, match="this request: its client has left"),
    ):
        llm.render(chat)
    assert asks == 6
    with pytest.raises(ValueError, match="cannot read an image: it is damaged"):
        llm.render(chat)  # now the third image is decoded
