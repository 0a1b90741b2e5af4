"""Forwards of fixed shapes have the pool's scores; recordings read fixed memory."""

import sys
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import starter
from drafters import RandomTree, known
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.backend import ReadsHiddenStates
from foreword.model.executors.cuda import backend as cuda_backend
from foreword.model.executors.cuda import build as cuda_build
from foreword.model.executors.cuda import chain, launch
from foreword.model.executors.cuda.backend import CudaGraphBackend, refused
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.probe.probe import choose
from foreword.sampling.noise import philox
from foreword.types import SamplingParams
from foreword_train.methods.lm import load
from grids import slow_case
from running import Case, engine, finish, outputs, prompts
from tiny_models import build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Without a GPU, Triton's interpreter runs the kernels."""
NO_GPU = pytest.mark.skipif(DEVICE == "cuda", reason="says what happens without a GPU")
KERNEL = pytest.mark.skipif(
    isinstance(launch.library(), str), reason="there is no Triton"
)
SLOW = pytest.mark.slow
TREE = [-1, 0, 0, -1, 3, 4, 1]


def at_once(work):
    """Runs what would be recorded."""
    return work


def script(
    backend: ReadsHiddenStates, layers: tuple[int, ...] = ()
) -> list[torch.Tensor]:
    """Two texts read, drafted after, partly kept and read on together; all scores."""
    said, tokens = [], list(range(40, 90))

    def read(*reads: Read) -> None:
        if layers:
            said.extend(backend.read_hidden([*reads], layers))
        else:
            said.append(backend.read([*reads]))

    backend.open(1, 64)
    backend.open(2, 64)
    read(Read(1, 0, tokens[:21], keep=3), Read(2, 0, tokens[7:12], keep=0))
    tree = Read(2, 5, tokens[12:14] + tokens[:7], TREE, keep=8)
    read(tree, Read(1, 21, tokens[21:22]))
    backend.move(2, [10, 11], 7)
    read(Read(2, 9, tokens[20:21] + tokens[30:33], [-1, -1, 0], keep=4))
    read(Read(2, 10, tokens[33:35], [-1, -1, 0, 1, 3], keep=2, held=3))
    backend.close(1)
    backend.close(2)
    return said


def at_length(backend) -> torch.Tensor:
    """A text of several forwards."""
    backend.open(3, 128)
    return backend.read([Read(3, 0, list(range(500, 600)), keep=100)])


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("which", "kernel", "layers"),
    [
        (starter.draft(), False, ()),
        (starter.draft(), False, (0, 1, 2)),
        pytest.param(starter.draft(), True, (0, 1, 2), marks=KERNEL),
        slow_case(starter.target(), False, (0, 3, 8)),
        pytest.param(starter.target(), True, (), marks=(KERNEL, SLOW)),
    ],
)
def test_logits_and_hidden_states_are_those_of_the_pool(which, kernel, layers):
    """Triton's interpreter takes most of a second for a layer."""
    hf = load(which, torch.float32).eval().to(DEVICE)
    found = script(CudaGraphBackend(hf, at_once, (16,), kernel=kernel), layers)
    hf.set_attn_implementation("foreword")
    same(found, script(PoolBackend(hf), layers))


@KERNEL
@SLOW
@pytest.mark.parametrize(
    "name", ["mistral", "gemma2", "gpt-oss", "deepseek-v3", "cohere2"]
)
def test_kernel_knows_windows_caps_sinks_and_sizes(name):
    hf = build(name).to(DEVICE)
    found = script(CudaGraphBackend(hf, at_once, (16, 32)))
    hf.set_attn_implementation("foreword")
    same(found, script(PoolBackend(hf)))


@pytest.mark.parametrize(
    ("which", "kernel", "temperature"),
    [
        (starter.draft(), False, 0.0),
        (starter.draft(), False, 1.0),
        pytest.param(starter.draft(), True, 1.0, marks=KERNEL),
        slow_case(starter.target(), False, 0.0),
        slow_case(starter.target(), False, 1.0),
        pytest.param(starter.draft(), True, 0.0, marks=(KERNEL, SLOW)),
    ],
)
def test_tree_of_draft_tokens_does_not_change_the_text(which, kernel, temperature):
    model = Model(load(which, torch.float32).to(DEVICE))
    model.backend = CudaGraphBackend(model.hf, at_once, (16, 32, 64), kernel=kernel)
    options = dict(seed=3, max_tokens=4 if kernel else 16, ignore_eos=True)
    params = SamplingParams(temperature=temperature, **options)
    asked = [prompt[:7] for prompt in prompts()[:2]] if kernel else prompts()[:2]
    requests = [Case(prompt, params) for prompt in asked]
    want = finish(engine(model), requests)
    got = finish(engine(model, RandomTree(known(want), spoilt=0.3), 6), requests)
    assert outputs(got) == outputs(want)
    model.backend = PoolBackend(model.hf)
    assert outputs(finish(engine(model), requests)) == outputs(want)


def by_the_sheet(query, keys, values, sheet, scoring: launch.Scoring, at):
    """The kernel in plain tensors: everything that it may know is in the sheet."""
    words, splits, _ = at
    key = torch.arange(splits * launch.SPLIT)
    names = (launch.RUN, launch.LENGTH, launch.CHAIN_ROWS)
    run, length, chain = (sheet[:, name, None].long() for name in names)
    node = key - chain
    bits = sheet[:, words : words + launch.MOST // 32].long()
    word = bits.gather(1, node.clamp(0, launch.MOST - 1) // 32)
    ancestor = (node >= 0) & (key < length) & ((word >> (node % 32)) & 1).bool()
    seen = (key < chain) | ancestor
    places = (run + key).clamp(max=len(keys) - 1)
    group = query.shape[1] // keys.shape[1]
    k, v = (held[places].repeat_interleave(group, 2) for held in (keys, values))
    scores = torch.einsum("rhd,rkhd->rhk", query, k) * scoring.scale
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return torch.einsum("rhk,rkhd->rhd", scores.softmax(-1).nan_to_num(0.0), v)


class Traced:
    """Records work as a list of operations; no Python of ours runs when played."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work):
        work()  # as on a GPU: what is made on first use is not part of it
        operations = make_fx(work)()
        said = operations()
        self.recorded += 1

        def play():
            self.played += 1
            for place, fresh in zip(said, operations(), strict=True):
                place.copy_(fresh)
            return said

        return play


@pytest.fixture
def traced(monkeypatch) -> Traced:
    # the interpreter runs kernels, and cannot be traced
    monkeypatch.setattr(cuda_backend, "attend", by_the_sheet)
    monkeypatch.setattr(cuda_backend, "fused_forwards", lambda _: {})
    monkeypatch.setattr(chain, "gumbel_on_device", plain_noise)
    return Traced()


def plain_noise(key: torch.Tensor, vocab: int) -> torch.Tensor:
    """The noise of a key, in plain tensors."""
    quads = torch.arange((vocab + 3) // 4)[None]
    zero = torch.zeros_like(key)[:, None]
    halves = key[:, None] & 0xFFFFFFFF, (key[:, None] >> 32) & 0xFFFFFFFF
    words = torch.stack(philox((quads, zero, zero, zero), halves), -1)
    units = (words.double() + 0.5) * 2.0**-32
    return -(-units.log()).log().flatten(1)[:, :vocab].float()


@pytest.mark.slow
def test_recording_reads_only_memory_that_stays(traced):
    hf = load(starter.draft(), torch.float32).eval()
    backend = CudaGraphBackend(hf, traced, (16, 64))
    found = [*script(backend), *script(backend, (0, 2))]
    # two shapes, with and without hidden states
    assert traced.recorded == 4 < traced.played == 8
    backend.open(7, 3000)  # the pool grows, so the keys lie elsewhere
    backend.close(7)
    found += [*script(backend), at_length(backend)]
    assert (traced.recorded, traced.played) == (7, 14)
    hf.set_attn_implementation("foreword")
    pooled = PoolBackend(hf)
    first = [*script(pooled), *script(pooled, (0, 2))]
    same(found, [*first, *script(pooled), at_length(pooled)])


def test_text_longer_than_the_largest_shape_is_read_in_parts():
    hf = load(starter.draft(), torch.float32).eval()
    text, tree = list(range(100, 150)), [-1, *range(9)]
    reads = [
        Read(1, 0, text[:5], keep=1),
        Read(2, 0, text, keep=37),
        Read(3, 0, text[:40], tree, keep=12),
    ]
    wide = [Read(4, 0, text[:30], [-1, *range(18)], keep=20)]

    def said(backend) -> list[torch.Tensor]:
        for read in (*reads, *wide):
            backend.open(read.id, 64)
        return [
            *backend.read_hidden(reads, (0, 2)),
            *backend.read_hidden(wide, (0, 2)),
            backend.read(wide),
        ]

    found = said(CudaGraphBackend(hf, at_once, (16,), kernel=False))
    hf.set_attn_implementation("foreword")
    same(found, said(PoolBackend(hf)))


class Failing:
    """Cannot record any more after the first time."""

    def __init__(self, good: int, error: type[RuntimeError] = RuntimeError) -> None:
        self.good, self.error = good, error

    def __call__(self, work):
        self.good -= 1
        if self.good < 0:
            raise self.error("operation not permitted when stream is capturing")
        return work


def test_a_recording_that_fails_is_done_without():
    hf = build("llama")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = script(CudaGraphBackend(hf, Failing(1), (16, 32), kernel=False))
    assert ["not permitted" in str(one.message) for one in told] == [True]
    same(found, script(CudaGraphBackend(hf, at_once, (16, 32), kernel=False)))
    with pytest.raises(RuntimeError, match="not permitted"):
        script(CudaGraphBackend(hf, Failing(0), kernel=False))
    full = Failing(1, torch.OutOfMemoryError)
    with pytest.raises(ModelError, match=r"forward over 16 rows: .*Lower"):
        script(CudaGraphBackend(hf, full, (16, 32), kernel=False))


@NO_GPU
def test_probe_takes_the_pool_without_recordings(monkeypatch):
    # as if there were a GPU, which the recorder then does not find
    monkeypatch.setattr(cuda_build, "refused", lambda _: None)
    backend, capability = choose(build("llama"), [])
    assert type(backend) is PoolBackend
    assert capability.backend == "pool"
    assert "CUDA" in dict(capability.refused)["graph"]


def test_no_gpu_and_no_triton_are_said(monkeypatch):
    assert refused(build("llama")) == "it needs CUDA"
    monkeypatch.setitem(sys.modules, "triton", None)
    kernels = "foreword.model.executors.cuda.kernels"
    monkeypatch.delitem(sys.modules, kernels, raising=False)
    monkeypatch.delattr(kernels, raising=False)
    assert "pip install triton" in launch.library.__wrapped__()


def on_devices(*devices: str) -> torch.nn.Module:
    """A model whose weights say that they lie on these devices. None has a GPU."""
    model, names = build("llama"), [*devices]
    with FakeTensorMode():
        for name, weight in [*model.named_parameters()]:
            module, _, own = name.rpartition(".")
            device = names.pop(0) if len(names) > 1 else names[0]
            moved = torch.nn.Parameter(torch.empty(weight.shape, device=device))
            setattr(model.get_submodule(module), own, moved)
    return model


@NO_GPU
@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((7, 5), "compute capability 7.5 is below 8.0"),
        ((8, 0), None),
        ((9, 0), None),
        ((12, 1), None),
    ],
)
def test_a_gpu_that_is_too_old_is_refused(monkeypatch, found, why):
    asked = []
    monkeypatch.setattr(
        torch.cuda,
        "get_device_capability",
        lambda device: asked.append(device) or found,
    )
    monkeypatch.setattr(cuda_backend, "library", object)
    assert refused(on_devices("cuda:1")) == why
    assert asked == [torch.device("cuda:1")]


@NO_GPU
@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cuda:0", "cpu", "cuda:0")])
def test_weights_on_several_devices_are_refused(monkeypatch, devices):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(cuda_backend, "library", object)
    assert refused(on_devices(*devices)) == "its weights are on several devices"


def test_without_triton_a_gpu_is_of_no_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    why = "there is no Triton here: pip install triton"
    monkeypatch.setattr(cuda_backend, "library", lambda: why)
    assert refused(on_devices("cuda:0")) == why


def test_error_without_memory_names_what_to_lower(monkeypatch):
    def full(*_: object) -> None:
        said = (
            "CUDA out of memory. Tried to allocate 2.00 GiB, of which 1.00 GiB is free."
        )
        raise torch.OutOfMemoryError(f"{said}\nMore")

    backend = CudaGraphBackend(build("llama"), at_once, kernel=False)
    script(backend)
    monkeypatch.setattr("foreword.model.executors.torch.kv_pool.grown", full)
    with pytest.raises(ModelError, match=r"5000 more tokens.*2.00 GiB.*1.00") as said:
        backend.open(9, 5000)
    assert "More" not in str(said.value)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_length_dependent_rotary_is_refused(rope):
    long = build("llama")
    long.config.rope_parameters = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(ModelError, match="rotary"):
        CudaGraphBackend(long, at_once)
