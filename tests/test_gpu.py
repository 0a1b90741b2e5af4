"""What must also hold on a CUDA device. Skipped where there is none."""

import pytest
import torch

from drafters import RandomTree, known
from foreword import family
from foreword.model import Model
from foreword.noise import Stream, plain_gumbel
from foreword.types import SamplingParams
from running import Request, engine, finish, plain, prompts

pytestmark = pytest.mark.gpu


def test_noise_is_the_same_on_both_devices():
    seeds, positions = [3, 2**62 + 1], [0, 70_000]
    here, there = (plain_gumbel(seeds, positions, 8192, stream=Stream.TARGET, device=d) for d in ("cpu", "cuda"))
    assert torch.allclose(here, there.cpu(), rtol=2e-7, atol=1e-7)
    assert (here != there.cpu()).float().mean() < 1e-3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_of_guesses_does_not_change_the_text(temperature):
    model = Model.load(family.target(), dtype="float32", device="cuda")
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
    requests = [Request(prompt, params) for prompt in prompts()]
    want = plain(model, requests)
    got = finish(engine(model, RandomTree(known(want), spoilt=0.3), 8, slots=5), requests)
    assert [answer.said for answer in got] == [answer.said for answer in want]
