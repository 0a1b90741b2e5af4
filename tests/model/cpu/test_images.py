"""Images on backend `native`: scores are the model's own; drafts change no token."""

from contextlib import contextmanager
from functools import cache, lru_cache, partial

import pytest
import torch
from torch.nn import Linear

import tiny_vision
from foreword import LLM, SamplingParams
from foreword.chats.prompts import ImagePrompt
from foreword.draft.self_speculative.base import SPARE
from foreword.model import Model, Read
from foreword.model.executors.native.rotary import joined
from foreword.model.executors.registry import NATIVE
from foreword.model.probe.trial import ROUNDED
from foreword.model.view import view
from foreword.native.forward import reason
from grids import slow_case
from tiny_vision import chats, folder, picture, said, together

pytestmark = pytest.mark.skipif(
    reason() is not None, reason=f"no native backend here: {reason()}"
)
FAMILIES = [name for name in tiny_vision.FAMILIES if not tiny_vision.missing(name)]
FAMILIES = [name for name in FAMILIES if "gemma4" not in name]
QUICK = ("tied", "qwen3-vl", "llava", "gemma3")
SOME = [name if name in QUICK else slow_case(name) for name in FAMILIES]
"""Families with M-RoPE and a tied head, later states, neither, or mutual."""
RECURRENT = ("lfm2-vl",)
NEW = 24
AFTER = [40, 50, 60, 70, 80, 90]
"""Tokens read after a prompt."""


target = partial(tiny_vision.loaded, dtype="bfloat16")
fresh = partial(tiny_vision.fresh, dtype="bfloat16")


def asked(**more) -> list[SamplingParams]:
    """Parameters for each chat: most are sampled, some of them hardly."""
    heats = (0, 0.8, 0.3, 0, 0.5)
    shared = dict(seed=7, max_tokens=NEW, **more)
    return [SamplingParams(temperature=heat, **shared) for heat in heats]


@cache
def plain(name: str) -> list[list[int]]:
    """Our own text without drafts, each chat alone."""
    return alone(fresh(name))


def alone(llm: LLM) -> list[list[int]]:
    """The text of each chat alone."""
    return [llm.chat(*pair).tokens for pair in zip(chats(), asked(), strict=True)]


@contextmanager
def opened(llm: LLM, prompt: ImagePrompt):
    """A backend with a sequence 99 that sees the images of a prompt."""
    backend = llm.target.backend
    backend.open(99, len(prompt) + len(AFTER))
    backend.give(99, llm.session._requests._sight.rows(prompt))
    try:
        yield backend
    finally:
        backend.close(99)


def scored(llm: LLM, prompt: ImagePrompt, chunk: int) -> torch.Tensor:
    """The scores of every token of a prompt, and of some after it, read in chunks."""
    text = [*prompt.tokens, *AFTER]
    with opened(llm, prompt) as backend:
        found = []
        for start in range(0, len(text), chunk):
            part = text[start : start + chunk]
            found.append(backend.read([Read(99, start, part, keep=len(part))]))
        return torch.cat(found)


@lru_cache(maxsize=1)
def own_model(name: str):
    model = tiny_vision.build(name).bfloat16()
    model.get_decoder().set_attn_implementation("eager")
    return model


def own_scores(name: str, llm: LLM, chat) -> torch.Tensor:
    """The same by the model's own code."""
    model, inputs = own_model(name), tiny_vision.inputs(llm, chat)
    count = inputs["input_ids"].shape[1]
    for key, more in {"input_ids": AFTER, "attention_mask": [1] * len(AFTER)}.items():
        inputs[key] = torch.cat([inputs[key], torch.tensor([more])], 1)
    for key, tensor in inputs.items():
        if tensor.shape == (1, count):  # what kind a token is
            inputs[key] = torch.nn.functional.pad(tensor, (0, len(AFTER)))
    with torch.inference_mode():
        return model(**inputs, use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_prompts_with_images_are_those_of_the_model(name):
    llm = fresh(name)
    assert llm.target.capability.backend == NATIVE
    # packed, and not held twice
    assert llm.target.hf.get_output_embeddings().weight.numel() == 0
    # elsewhere a text before its image, and two images
    for chat in chats()[:-1] if name in QUICK else (chats()[1], chats()[3]):
        prompt, expected = llm.render(chat), own_scores(name, llm, chat)
        scores = scored(llm, prompt, len(prompt) + len(AFTER))
        deviations = (scores - expected).abs().amax(-1) / expected.std()
        assert float(deviations.max()) < ROUNDED * 2 / 3
        assert float(deviations[-len(AFTER) :].median()) < ROUNDED / 4
        if name != "gemma3":  # whose images are read whole
            assert torch.equal(scored(llm, prompt, 5), scores)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "gemma3"])
def test_a_view_that_shares_keys_sees_the_images(name):
    llm = fresh(name)
    prompt = llm.render(chats()[3])
    text, cut = [*prompt.tokens, *AFTER], prompt.tokens.index(prompt.placeholder) + 3
    whole = scored(llm, prompt, len(text))
    for start in (cut, len(prompt)):
        with opened(llm, prompt) as backend:
            reader = view(llm.target, spare=SPARE)
            backend.read([Read(99, 0, text[:start], keep=0)])
            rest = Read(99, start, text[start:], keep=len(text) - start)
            assert torch.equal(reader.read([rest]), whole[start:])


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("name", SOME)
def test_text_does_not_depend_on_batch_or_chunks(name, chunk):
    answers = together(fresh(name, chunk=chunk, slots=3), asked())
    assert [one.tokens for one in answers] == plain(name)
    assert len({tuple(one) for one in plain(name)}) == len(chats())


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "method",
    ["suffix", "predicted", "layers", "quantized", "lm", "recycle", "lookahead"],
)
@pytest.mark.parametrize("name", SOME)
def test_drafts_change_no_token(name, method):
    params = asked()
    if method == "predicted":
        texts = enumerate(plain(name))
        params = [asked(prediction=tuple(text))[number] for number, text in texts]
    if name in RECURRENT and method in ("layers", "quantized"):
        pytest.skip("refused: draft tokens cannot share a recurrent state")
    draft = Model.load(folder(name), dtype="bfloat16") if method == "lm" else None
    drafted = together(fresh(name, method, draft=draft, nodes=4), params)
    assert [one.tokens for one in drafted] == plain(name)
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    if (name, method) == ("idefics3", "suffix"):
        return  # its texts never repeat two tokens: there is nothing to look up
    assert sum(one.stats.drafted for one in drafted) > 0
    assert sum(one.stats.accepted for one in drafted) > 0


@pytest.mark.parametrize("name", SOME)
def test_only_equal_images_share_pages(name):
    tiny_vision.check_pages(lambda: fresh(name), keeps_states=name in RECURRENT)


@pytest.mark.parametrize(
    "name", ["tied", "gemma3", *(name for name in RECURRENT if name in FAMILIES)]
)
def test_preempted_text_is_read_again_with_images(name):
    assert tiny_vision.preempted(fresh(name), asked()[0]) == plain(name)[0]


@pytest.mark.parametrize("name", [name for name in RECURRENT if name in FAMILIES])
def test_kept_state_is_read_again_with_images(name):
    llm = fresh(name)
    prompt = llm.render(said("A text that fills a page." * 3, picture(33, 31, 3)))
    text = [*prompt.tokens, *AFTER]
    whole = scored(llm, prompt, len(text))
    llm.generate(prompt, asked()[0])
    images = llm.session._requests._sight.rows(prompt)
    backend = llm.target.backend
    held = backend.open(99, len(text), images.keys_of(0, text))
    backend.give(99, images)
    past = held + 2
    try:
        first = backend.read([Read(99, held, text[held:])])
        second = backend.read([Read(99, past, text[past:], keep=len(text) - past)])
    finally:
        backend.close(99)
    assert held > prompt.tokens.index(prompt.placeholder)
    assert torch.equal(first, whole[-1:])
    assert torch.equal(second, whole[past:])


@pytest.mark.parametrize(
    ("name", "form"), [("tied", "weights"), slow_case("tied", "kv"), ("gemma3", "kv")]
)
def test_target_in_8_bits_reads_images(name, form):
    coded = Model.load(folder(name), **{form: "int8"})
    llm, prompt = LLM(coded, method="none"), fresh(name).render(chats()[3])
    scores, whole = (scored(one, prompt, 512) for one in (llm, fresh(name)))
    assert 0 < float(((scores - whole).abs().amax(-1) / whole.std()).median()) < ROUNDED
    texts = alone(llm)
    assert len({tuple(text) for text in texts}) == len(texts)
    drafted = together(LLM(coded, method="recycle", nodes=4), asked())
    assert [one.tokens for one in drafted] == texts
    assert sum(one.stats.accepted for one in drafted) > 0


def test_angles_of_three_directions_are_joined():
    config = target("tied").hf.config.text_config
    rotary = target("tied").hf.get_decoder().rotary_emb
    positions = torch.tensor([[0, 1, 1, 1, 3], [0, 1, 1, 2, 3], [0, 1, 2, 1, 3]])
    each = [axis.expand(3, 1, -1) for axis in positions]
    grid = torch.stack([rotary(torch.zeros(1), axis)[0] for axis in each])
    expected, _ = rotary(torch.zeros(1), positions[:, None])
    assert grid.shape == (3, *expected.shape)
    assert torch.equal(joined(grid, config.rope_parameters["mrope_section"]), expected)
    assert not torch.equal(grid[0], expected)


def test_packed_weights_are_lent_for_a_while():
    hf = target("tied").hf
    chats_before = plain("tied")
    given = dict(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    with target("tied").backend.lend(), torch.inference_mode():
        own = hf(**given).logits
    expected = tiny_vision.build("tied").bfloat16()(**given).logits
    torch.testing.assert_close(own, expected, rtol=0.1, atol=0.1)
    linears = [one for one in hf.get_decoder().modules() if isinstance(one, Linear)]
    packed = [hf.get_output_embeddings(), hf.get_input_embeddings(), *linears]
    assert {layer.weight.numel() for layer in packed} == {0}
    assert alone(fresh("tied")) == chats_before
