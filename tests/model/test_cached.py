"""Models driven through the cache of transformers: rejected guesses leave nothing there, and a round is one forward."""

import pytest
import torch

import architectures
from foreword.model.cached import MOST_AGAIN, CachedDriver
from foreword.model.driver import Mode
from foreword.model.plan import Read

NAMES = ["qwen3-next", "qwen3.5", "lfm2", "bloom"]


def text(count: int) -> list[int]:
    return torch.randint(architectures.VOCAB, (count,), generator=torch.Generator().manual_seed(2)).tolist()


@pytest.mark.parametrize("right", [0, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_round_with_guesses_takes_one_forward_and_now_and_then_one_more(name, right):
    model = architectures.build(name)
    forwards: list[int] = []
    model.register_forward_pre_hook(lambda *_, **given: forwards.append(1))
    driver, words, rounds = CachedDriver(model, Mode.CACHE), text(100), 12
    with torch.inference_mode():
        truth = model(torch.tensor([words])).logits[0]
    forwards.clear()
    driver.open(1, 200)
    past, pending = 0, 30
    for _ in range(rounds):
        begun = past + pending
        guesses = [
            (word + (place >= right)) % architectures.VOCAB for place, word in enumerate(words[begun : begun + 4])
        ]
        found = driver.read([Read(1, past, words[past:begun] + guesses, keep=5)])
        wanted = truth[begun - 1 : begun + right]
        torch.testing.assert_close(found[: right + 1], wanted, atol=1e-3, rtol=1e-3)
        past, pending = begun + right, 1
    # The prompt has a forward of its own, and so has what stayed of a few rounds.
    kept = 0 if right == 4 or name == "bloom" else rounds * (right + 1) // (MOST_AGAIN - right)
    assert rounds <= len(forwards) <= rounds + 1 + kept


def test_keys_and_values_of_ordinary_layers_are_not_copied_for_it():
    driver = CachedDriver(architectures.build("qwen3.5"), Mode.CACHE)
    driver.open(1, 200)
    driver.read([Read(1, 0, text(50), keep=1)])
    before = driver._states[1].cache.layers[1].keys
    driver.read([Read(1, 50, text(5), keep=5)])
    saved = driver._states[1].saved
    assert saved is not None
    assert saved[0].layers[1].keys is before
    assert before.shape[-2] == 50
