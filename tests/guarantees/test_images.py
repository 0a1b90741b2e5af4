"""Images in prompts: greedy text is transformers', drafts change no token."""

from functools import cache, partial

import pytest

import tiny_vision
from foreword import LLM, InvalidRequest, SamplingParams
from foreword.chats.prompts import ids_of
from foreword.model import Mode
from grids import grid, slow_case
from tiny_vision import chats, picture, said, together

FAMILIES = [name for name in tiny_vision.FAMILIES if tiny_vision.missing(name) is None]
QUICK = ("qwen2-vl", "llava", "gemma3")
SOME = [name if name in QUICK else slow_case(name) for name in FAMILIES]
"""Families with different inputs; tests/hf/test_hf_images.py looks at others."""
DRAFTED = (("qwen2-vl", "lm"), ("llava", "predicted"), ("gemma3", "layers"))
NEW = 16


target = partial(tiny_vision.loaded, dtype="float32")
fresh = partial(tiny_vision.fresh, dtype="float32")


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


def greedy(**more) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=NEW, **more)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SOME)
def test_greedy_text_is_that_of_generate(name):
    llm = fresh(name)
    assert llm.target.mode is Mode.TREE
    for chat, expected in zip(chats(), wanted(name), strict=True):
        inputs = tiny_vision.inputs(llm, chat)
        assert ids_of(llm.render(chat)) == inputs["input_ids"][0].tolist()
        assert llm.chat(chat, greedy()).tokens == expected
    seen = [one for one in wanted(name) if one]
    assert len({tuple(one) for one in seen}) == len(seen)


@pytest.mark.sample(3)
@pytest.mark.parametrize("chunk", [5, 512])
@pytest.mark.parametrize("name", SOME)
def test_text_depends_on_no_other_request_and_no_chunk(name, chunk):
    answers = together(fresh(name, chunk=chunk, slots=3), greedy())
    assert [one.tokens for one in answers] == wanted(name)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "method"),
    grid(
        DRAFTED,
        FAMILIES,
        ["suffix", "predicted", "layers", "lm", "recycle", "lookahead"],
    ),
)
def test_drafts_change_no_token_of_a_sampled_text(name, method):
    asked = [
        SamplingParams(temperature=0.8, seed=seed, max_tokens=NEW)
        for seed in range(len(chats()))
    ]
    plain = together(fresh(name), asked)
    if method == "predicted":
        asked = [
            SamplingParams(
                temperature=0.8, seed=seed, max_tokens=NEW, prediction=tuple(one.tokens)
            )
            for seed, one in enumerate(plain)
        ]
    draft = target(name) if method == "lm" else None
    drafted = together(fresh(name, method, draft=draft, nodes=4), asked)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    assert sum(one.stats.drafted for one in drafted) > 0
    if method in ("layers", "lm"):
        assert sum(one.stats.accepted for one in drafted) > 0
    if method == "predicted":
        assert all(one.stats.accepted > NEW // 2 for one in drafted)


@pytest.mark.parametrize("name", SOME)
def test_only_equal_images_share_pages(name):
    tiny_vision.check_pages(lambda: fresh(name))


@pytest.mark.parametrize("name", ["qwen2-vl", "gemma3"])
def test_preempted_text_is_read_again_with_its_images(name):
    assert tiny_vision.preempted(fresh(name), greedy()) == wanted(name)[0]


def test_a_prompt_of_text_names_its_images():
    llm = fresh("qwen2-vl")
    text = "<|vision_start|><|image_pad|><|vision_end|>A picture of"
    asked = [{"prompt": text, "images": [picture(72, 40, seed)]} for seed in (0, 1)]
    one, other, alone = llm.generate([*asked, "A picture of"], greedy())
    assert len({tuple(answer.tokens) for answer in (one, other, alone)}) == 3
    assert llm.generate(asked[0], greedy())[0].tokens == one.tokens


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ({"prompt": "no place for it", "images": [picture(9, 8)]}, ".*once for each"),
        ({"prompt": "<|image_pad|>", "images": [picture(900, 4)]}, "be 100 times as"),
        ({"prompt": "<|image_pad|>", "images": []}, "with images, it is"),
        ({"prompt": 7, "images": [picture(9, 8)]}, "with images, it is"),
        (
            {"prompt": "<|image_pad|>", "images": ["https://example.org/a.png"]},
            "nothing is loaded from the network",
        ),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_prompt_that_cannot_be_served_is_refused_by_name(prompt, why):
    with pytest.raises(InvalidRequest, match=why):
        fresh("qwen2-vl").generate(prompt, greedy())


def test_images_for_a_text_model_are_refused():
    with (
        LLM() as text,
        pytest.raises(InvalidRequest, match=r"images with .*: it reads text only"),
    ):
        text.chat(said("What?", picture(9, 8)))
    llm = fresh("qwen2-vl")
    prompt = llm.render(chats()[0])
    with pytest.raises(InvalidRequest, match="score a prompt: there are images in it"):
        llm.score(prompt)


def test_rendering_runs_no_model():
    """A server renders in another thread while the engine uses the model."""
    llm, calls = fresh("qwen2-vl"), []
    hook = llm.target.hf.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        prompt = llm.render(chats()[0])
        assert calls == []
        llm.generate([prompt], greedy())
        assert calls != []
    finally:
        hook.remove()
