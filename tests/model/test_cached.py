"""Models through transformers' cache: fixed blocks, nothing left of rejections."""

import pytest
import torch

import tiny_models
from foreword.model.backend import Mode
from foreword.model.executors.cache.backend import BLOCK, PROMPT, CacheBackend
from foreword.model.kv.reads import Read

NAMES = ["qwen3-next", "qwen3.5", "lfm2", "bloom"]


def text(count: int) -> list[int]:
    return torch.randint(
        tiny_models.VOCAB, (count,), generator=torch.Generator().manual_seed(2)
    ).tolist()


@pytest.mark.parametrize("right", [0, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_round_takes_a_forward_per_block(name, right):
    model = tiny_models.build(name)
    shapes: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(given["input_ids"].shape[1]),
        with_kwargs=True,
    )
    backend, words = CacheBackend(model, Mode.CACHE), text(100)
    with torch.inference_mode():
        truth = model(input_ids=torch.tensor([words])).logits[0]
    shapes.clear()
    backend.open(1, 200)
    past, pending = 0, 30
    while past + pending + 4 < len(words):
        begun = past + pending
        draft_tokens = [
            (word + (place >= right)) % tiny_models.VOCAB
            for place, word in enumerate(words[begun : begun + 4])
        ]
        found = backend.read([Read(1, past, words[past:begun] + draft_tokens, keep=5)])
        wanted = truth[begun - 1 : begun + right]
        torch.testing.assert_close(found[: right + 1], wanted, atol=1e-3, rtol=1e-3)
        if past:
            assert shapes == [BLOCK] * ((begun + 3) // BLOCK - past // BLOCK + 1)
        else:
            assert shapes == [16, BLOCK, BLOCK, BLOCK], (
                "the prompt in halves, the block after it, the draft tokens'"
            )
        shapes.clear()
        past, pending = begun + right, 1


def test_long_prompt_is_read_in_fixed_blocks():
    model = tiny_models.build("qwen3.5")
    words, shapes, found = text(2 * PROMPT + 70), [], []
    model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(given["input_ids"].shape[1]),
        with_kwargs=True,
    )
    for chunk in (7, 100, len(words)):
        backend = CacheBackend(model, Mode.CACHE)
        backend.open(1, 400)
        shapes.clear()
        for start in range(0, len(words), chunk):
            part = words[start : start + chunk]
            found.append(
                backend.read(
                    [Read(1, start, part, keep=int(start + len(part) == len(words)))]
                )
            )
        assert shapes == [PROMPT, PROMPT, 64, BLOCK]
    said = [rows for rows in found if len(rows)]
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def test_keys_and_values_of_ordinary_layers_are_not_copied():
    backend = CacheBackend(tiny_models.build("qwen3.5"), Mode.CACHE)
    backend.open(1, 200)
    backend.read([Read(1, 0, text(50), keep=1)])
    marks = backend._states[1].marks
    length, before = marks[-1]
    assert length == 48
    backend.read([Read(1, 50, text(5), keep=5)])
    assert marks[-1][1] is before
    assert before is not None
    assert before.layers[1].keys.shape[-2] == 48


@pytest.mark.parametrize("mode", [Mode.CACHE, Mode.PLAIN])
def test_a_text_may_be_taken_back_to_any_place(mode):
    model, words = tiny_models.build("qwen3.5"), text(60)
    backend, other = CacheBackend(model, mode), CacheBackend(model, mode)
    for one in (backend, other):
        one.open(1, 100)
        one.read([Read(1, 0, words[:20], keep=1)])
    wanted = backend.read([Read(1, 20, words[20:30], keep=3)])
    other.read([Read(1, 20, words[30:], keep=1)])
    assert torch.equal(other.read([Read(1, 20, words[20:30], keep=3)]), wanted)
    torch.testing.assert_close(
        other.read([Read(1, 5, words[5:30], keep=3)]), wanted, atol=1e-3, rtol=1e-3
    )


def test_a_model_that_has_no_cache_reads_whole_texts():
    model, words = tiny_models.build("llama"), text(20)
    backend = CacheBackend(model, Mode.PLAIN, cache=False)
    own = CacheBackend(model, Mode.PLAIN)
    for one in (backend, own):
        one.open(1, 40)
        one.read([Read(1, 0, words[:9], keep=0)])
    said, same = (one.read([Read(1, 9, words[9:], keep=2)]) for one in (backend, own))
    torch.testing.assert_close(said, same, atol=1e-3, rtol=1e-3)
