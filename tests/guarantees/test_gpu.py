"""What must also hold on a CUDA device, beside tests/model/cuda/test_attention.py."""

import pytest
import torch

import starter
from drafters import Foresight, RandomTree, known
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.cuda.backend import Recorder
from foreword.model.executors.cuda.launch import Scoring
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.probe.probe import choose
from foreword.sampling.noise import Stream, plain_gumbel
from foreword_train.methods.lm import load
from layers import TOLERANCE, Layer
from running import Case, engine, finish, of_length, outputs, plain, prompts

pytestmark = pytest.mark.gpu


def on_device(dtype: str = "float32", device: str = "cuda") -> Model:
    model = Model.load(starter.target(), dtype=dtype, device=device)
    assert model.capability.backend == "graph", model.capability.reason
    return model


def requests(temperature: float, tokens: int = 24) -> list[Case]:
    params = of_length(tokens, temperature, seed=3)
    return [Case(prompt, params) for prompt in prompts()]


def test_noise_is_the_same_on_both_devices():
    keys, depths = [3, 2**63 + 1], [0, 70_000]
    here, there = (
        plain_gumbel(keys, 8192, stream=Stream.TARGET, depths=depths, device=d)
        for d in ("cpu", "cuda")
    )
    assert torch.allclose(here, there.cpu(), rtol=2e-7, atol=1e-7)
    assert (here != there.cpu()).float().mean() < 1e-3


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_kernel_computes_what_the_definition_does(dtype, dim):
    reads = [
        Read(1, 5000, [0]),
        Read(2, 300, [0] * 70),
        Read(3, 2000, [0] * 65, [-1, *range(30), *[-1, 5, 9] * 11]),
    ]
    layer = Layer(reads, heads=(32, 8), dims=(dim, dim), dtype=dtype)
    for scoring in (Scoring(dim**-0.5), Scoring(dim**-0.5, window=700, softcap=30.0)):
        found = layer.by_kernel(scoring, rows=256, splits=16)
        want = layer.plainly(scoring)
        torch.testing.assert_close(
            found[:136], want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
        # whatever is launched
        assert torch.equal(layer.by_kernel(scoring, rows=136, splits=10), found[:136])


def test_replays_compute_what_the_pool_does():
    model = on_device()
    pooled = PoolBackend(model.hf)
    text, tree = list(range(40, 400)), [-1, 0, 0, -1, 3]
    for backend in (model.backend, pooled):
        backend.open(1, 512)
    for reads in (
        [Read(1, 0, text)],
        [Read(1, 360, [9, *text[:5]], tree, keep=6)],
        [Read(1, 361, [7, 8, 9], keep=3)],
    ):
        for _ in range(3):
            found, hidden = model.backend.read_hidden(reads, [0, 8])
            want, expected = pooled.read_hidden(reads, [0, 8])
            torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(hidden, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("drafter", [Foresight, RandomTree])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_do_not_change_the_text(temperature, drafter):
    model, asked = on_device(), requests(temperature)
    want = plain(model, asked)
    loop = engine(model, drafter(known(want), spoilt=0.3), 8, slots=5)
    assert outputs(finish(loop, asked)) == outputs(want)
    assert loop.clock.verify == 0 < loop.clock.score, "the forward counts whole"


@pytest.mark.parametrize("drafter", [Foresight, RandomTree])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_shape_for_all_forwards_gives_the_same_text(temperature, drafter):
    model, asked = on_device("bfloat16"), requests(temperature, 64)
    want = plain(model, asked)
    got = finish(engine(model, drafter(known(want), spoilt=0.3), 8, slots=5), asked)
    assert outputs(got) == outputs(want)


def test_model_that_cannot_be_recorded_runs_through_the_pool():
    # in float32, cuBLAS gives a row other bits beside other rows, so the pool is refused
    hf = load(starter.target(), torch.bfloat16).cuda().eval()

    def wait(module, given, out) -> None:
        torch.cuda.synchronize()  # which a recording cannot hold

    hf.model.layers[3].register_forward_hook(wait)
    backend, capability = choose(hf, [])
    assert type(backend) is PoolBackend
    assert dict(capability.refused)["graph"]
    backend.open(1, 64)
    # and the device is as good as before
    assert backend.read([Read(1, 0, [5, 6, 7])]).isfinite().all()


def test_recordings_are_made_again_where_the_keys_lie_elsewhere():
    model = on_device()
    pooled = PoolBackend(model.hf)
    text = list(range(40, 140))
    for backend in (model.backend, pooled):
        backend.open(1, 128)
    rows = model.backend.pool.rows
    for turn, reads in enumerate(
        ([Read(1, 0, text)], [Read(1, 100, [9])], [Read(1, 101, [7, 8], keep=2)])
    ):
        found, want = model.read(reads), pooled.read(reads)
        torch.testing.assert_close(found, want, atol=1e-3, rtol=1e-3)
        model.open(2 + turn, 4 * model.backend.pool.rows)
    assert model.backend.pool.rows > rows


def test_too_much_memory_says_how_much():
    model = on_device()
    with pytest.raises(ModelError, match=r"allocate the keys.*GiB.*'max_tokens'"):
        model.open(1, 10**9)
    model.open(2, 64)
    assert model.read([Read(2, 0, [5, 6, 7])]).isfinite().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_model_on_another_device_than_the_current_one():
    first, second = on_device(device="cuda:0"), on_device(device="cuda:1")
    asked = requests(0.0)
    assert outputs(plain(second, asked)) == outputs(plain(first, asked))


def test_recordings_share_memory_and_may_be_played_in_any_order():
    recorder, held = Recorder(), torch.zeros(1000, device="cuda")
    plays = [recorder(lambda by=by: (held * by + 1.0, held.cumsum(0))) for by in (2, 3)]
    held.fill_(5.0)
    for turn in (0, 1, 1, 0):
        first, second = plays[turn]()
        assert (first == 5.0 * (2 + turn) + 1.0).all()
        assert second[-1] == 5000.0
