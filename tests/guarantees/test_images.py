"""Images in prompts: greedy text is that of transformers' `generate`, and drafts and batches change no token."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

import tiny_vision
from foreword import LLM, SamplingParams
from foreword.model import Mode, Model
from foreword.model.pool.prefixes import PAGE
from tiny_vision import picture, said

FAMILIES = [name for name in tiny_vision.FAMILIES if tiny_vision.missing(name) is None]
NEW = 20
TEXT = [{"role": "user", "content": "There is no image here."}]


@cache
def folder(name: str) -> Path:
    return tiny_vision.saved(name, Path(mkdtemp(prefix="tiny_vision")))


@cache
def target(name: str) -> Model:
    return Model.load(folder(name), dtype="float32")


def fresh(name: str, method: str = "none", **options) -> LLM:
    """An LLM whose target keeps no text of earlier ones."""
    target(name).backend.pool.prefixes.clear()
    return LLM(target(name), method=method, **options)


@cache
def chats() -> list[list[dict]]:
    """Chats with a landscape, a portrait after a text, a tiny image and two in one message; one without images."""
    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    return [
        said("What is this?", picture(72, 40)),
        [*earlier, *said("Describe it.", picture(24, 88, 1))],
        said("Small.", picture(9, 8, 2)),
        said("Compare.", picture(33, 31, 3), picture(80, 32, 4)),
        TEXT,
    ]


@cache
def wanted(name: str) -> list[list[int]]:
    """What transformers writes for each chat, greedily."""
    model = tiny_vision.build(name)
    texts = []
    for chat in chats():
        inputs = tiny_vision.inputs(fresh(name), chat)
        out = model.generate(**inputs, do_sample=False, max_new_tokens=NEW)
        texts.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return texts


def together(llm: LLM, params) -> list:
    return llm.generate([llm.render(chat) for chat in chats()], params)


def greedy(**more) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=NEW, **more)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_generate(name):
    llm = fresh(name)
    assert llm.target.mode is Mode.TREE
    for chat, expected in zip(chats(), wanted(name), strict=True):
        assert list(llm.render(chat)) == tiny_vision.inputs(llm, chat)["input_ids"][0].tolist()
        assert llm.chat(chat, greedy()).tokens == expected
    seen = [one for one in wanted(name) if one]
    assert len({tuple(one) for one in seen}) == len(seen)


@pytest.mark.parametrize("chunk", [5, 512])
@pytest.mark.parametrize("name", FAMILIES)
def test_text_depends_on_no_other_request_and_no_chunk(name, chunk):
    answers = together(fresh(name, chunk=chunk, slots=3), greedy())
    assert [one.tokens for one in answers] == wanted(name)


@pytest.mark.parametrize("method", ["suffix", "predicted", "layers", "lm", "recycle", "lookahead"])
@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_change_no_token_of_a_sampled_text(name, method):
    asked = [SamplingParams(temperature=0.8, seed=seed, max_tokens=NEW) for seed in range(len(chats()))]
    plain = together(fresh(name), asked)
    if method == "predicted":
        asked = [
            SamplingParams(temperature=0.8, seed=seed, max_tokens=NEW, prediction=tuple(one.tokens))
            for seed, one in enumerate(plain)
        ]
    draft = target(name) if method == "lm" else None
    drafted = together(fresh(name, method, draft=draft, nodes=4), asked)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    assert sum(one.stats.drafted for one in drafted) > 0
    if method == "predicted":
        assert all(one.stats.accepted > NEW // 2 for one in drafted)


@pytest.mark.parametrize("name", FAMILIES)
def test_images_of_one_size_share_no_pages_unless_they_are_the_same(name):
    filler = "A long text before the image, so that pages are full. " * 2
    one, other = (said("What?" + filler, picture(64, 64, seed)) for seed in (1, 2))
    before = [{"role": "user", "content": filler}, {"role": "assistant", "content": "Yes."}]
    llm = fresh(name)
    ids = llm.render(before + one)
    assert list(ids) == list(llm.render(before + other))
    alone = llm.chat(before + other, greedy())
    llm = fresh(name)
    first = llm.chat(before + one, greedy())
    second, again = llm.chat(before + other, greedy()), llm.chat(before + one, greedy())
    assert second.tokens == alone.tokens != first.tokens
    assert again.tokens == first.tokens
    placeholder = ids.index(ids.placeholder)
    assert second.stats.cached == placeholder // PAGE * PAGE > 0
    assert again.stats.cached == (len(ids) - 1) // PAGE * PAGE > second.stats.cached


@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen2-vl", "gemma3"])
def test_a_text_that_gives_way_is_read_again_with_its_images(name):
    llm = fresh(name, cache_tokens=6 * PAGE)
    assert [one.tokens for one in together(llm, greedy())] == wanted(name)
