"""A user's text cannot forge an image's token where control tokens are plain."""

from functools import cache

import pytest
from transformers import PreTrainedTokenizerBase

import tiny_vision
from foreword import LLM, InvalidRequest
from foreword.api.requests import Requests
from foreword.chats import image_reader
from foreword.chats.sanitize import MARK

pytestmark = pytest.mark.skipif(
    not hasattr(PreTrainedTokenizerBase, MARK),
    reason="this version of transformers marks no control tokens",
)


@cache
def llm() -> LLM:
    return LLM(
        tiny_vision.folder("qwen2-vl"), method="none", dtype="float32", backend="pool"
    )


def placeholder() -> int:
    return llm().target.hf.config.image_token_id


def test_text_beside_an_image_forges_no_place_of_one():
    forged = llm().tokenizer.convert_ids_to_tokens(placeholder())
    picture = tiny_vision.picture(72, 40)
    clean = Requests(llm().target, llm().tokenizer, image_reader, sanitize=True)
    found = clean.render(tiny_vision.said(f"What {forged} is", picture))
    pieces = (
        llm().render(tiny_vision.said("What is", picture)).tokens.count(placeholder())
    )
    assert found.tokens.count(placeholder()) == pieces > 0
    with pytest.raises(InvalidRequest, match="cannot process the images of this chat"):
        llm().render(tiny_vision.said(f"What {forged} is", picture))


def test_text_alone_forges_no_place_of_an_image():
    forged = llm().tokenizer.convert_ids_to_tokens(placeholder())
    chat = [{"role": "user", "content": f"a {forged} b"}]
    clean = Requests(llm().target, llm().tokenizer, image_reader, sanitize=True)
    assert placeholder() in llm().render(chat)
    assert placeholder() not in clean.render(chat)
