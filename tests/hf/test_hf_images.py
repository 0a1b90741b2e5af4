"""The drop-in on vision-language models: transformers' text, drafted, or a reason."""

from functools import cache

import pytest
import torch

import foreword
import tiny_vision
from foreword import InvalidRequest
from foreword.hf import borrowed
from foreword.model import load_tokenizer
from foreword.model.vision.processor import load_processor
from generating import OURS, OUTPUT
from grids import slow_case

LEFT_OUT = ("smolvlm", "mistral3", "pixtral", "lfm2-vl", "tied")
NAMES = [name for name in tiny_vision.FAMILIES if name not in LEFT_OUT]
QUICK = ("qwen2.5-vl", "llava-onevision", "gemma4")
"""Families that turn positions, cut images, or have windows; some drafts fit."""
ASKED = dict(speculative_decoding=True)
OPTIONS = dict(do_sample=False, max_new_tokens=24, pad_token_id=0, **OUTPUT)


@cache
def model(name: str) -> torch.nn.Module:
    return tiny_vision.build(name)


@cache
def read(name: str, chat: int = 3) -> dict[str, torch.Tensor]:
    """Return what the processor makes of a chat."""
    folder = tiny_vision.folder(name)
    processor = load_processor(folder, model(name).config, load_tokenizer(folder))
    options = dict(tokenize=True, return_dict=True, return_tensors="pt")
    options |= dict(add_generation_prompt=True)
    template = processor.chat_template or processor.tokenizer.chat_template
    turns = tiny_vision.chats()[chat]
    return dict(processor.apply_chat_template(turns, chat_template=template, **options))


pytestmark = pytest.mark.usefixtures("four")


EVERY = [name if name in QUICK else slow_case(name) for name in NAMES]


@pytest.mark.parametrize("name", EVERY)
def test_callable_gives_the_text_of_generate(name, rounds):
    expected = model(name).generate(**read(name), **OPTIONS).sequences
    drafting = dict(OURS, drafter=model(name), nodes=4)
    found = model(name).generate(**read(name), **OPTIONS, **drafting)
    assert torch.equal(found.sequences, expected)
    assert found.stats[0].drafted > 0
    assert found.stats[0].accepted > 0 or name not in QUICK
    assert rounds[0].images is not None


@pytest.mark.parametrize("name", ["qwen2-vl", "gemma3"])
def test_images_are_served_where_it_is_enabled(name, rounds):
    expected = model(name).generate(**read(name), **OPTIONS).sequences
    with foreword.enable():
        options = dict(OPTIONS, assistant_model=model(name))
        found = model(name).generate(**read(name), **options)
    assert torch.equal(found.sequences, expected)
    assert found.stats[0].accepted > 0
    assert rounds[0].images is not None
    other = read(name) | {"pixel_values": read(name)["pixel_values"].flip(0)}
    own = model(name).generate(**other, **OPTIONS).sequences
    assert not torch.equal(own, expected)
    with foreword.enable():
        found = model(name).generate(**other, **OPTIONS, **ASKED)
    assert torch.equal(found.sequences, own)


def test_sampled_text_is_that_without_drafts():
    options = OPTIONS | dict(do_sample=True, **OURS, seed=5)
    plain = model("qwen2-vl").generate(**read("qwen2-vl"), **options, method="none")
    options |= dict(drafter=model("qwen2-vl"), nodes=4)
    found = model("qwen2-vl").generate(**read("qwen2-vl"), **options)
    assert torch.equal(found.sequences, plain.sequences)
    assert found.stats[0].accepted > 0


def test_drafts_are_accepted_and_change_no_token_in_c():
    whole = tiny_vision.build("qwen2-vl").bfloat16()
    small = tiny_vision.build("qwen2-vl").bfloat16()
    options = OPTIONS | dict(max_new_tokens=48, **OURS)
    plain = whole.generate(**read("qwen2-vl"), **options, method="none")
    found = whole.generate(**read("qwen2-vl"), **options, drafter=small, nodes=8)
    assert torch.equal(found.sequences, plain.sequences)
    assert found.stats[0].accepted > 0
    again = tiny_vision.build("qwen2-vl").bfloat16()
    # given back as they were
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_images_of_several_rows_are_left_to_transformers():
    twice = {name: torch.cat([one, one]) for name, one in read("llava").items()}
    expected = model("llava").generate(**twice, **OPTIONS).sequences
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match="images are read for one row, and there"),
    ):
        found = model("llava").generate(**twice, **OPTIONS, **ASKED)
    assert torch.equal(found.sequences, expected)
    with pytest.raises(InvalidRequest, match="read for one row, and there are 2"):
        model("llava").generate(**twice, **OPTIONS, **OURS)


def test_scores_that_deviate_leave_images_to_transformers(monkeypatch):
    from foreword.model.vision import processor

    borrowed._RECORDS.clear()  # an earlier comparison would be remembered
    monkeypatch.setattr(processor.Vision, "deviation", lambda self, prompt: 1.0)
    expected = model("llava").generate(**read("llava"), **OPTIONS).sequences
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match="scores after an image deviate"),
    ):
        found = model("llava").generate(**read("llava"), **OPTIONS, **ASKED)
    assert torch.equal(found.sequences, expected)
