"""The probe believes scores: a misbehaving model gets a simpler, exact backend."""

import warnings

import pytest
import torch
from transformers import PreTrainedModel

import starter
import tiny_models
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Mode, Model, Read
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.registry import build_backend
from foreword.model.executors.torch.packed_linear import PackedLinear
from foreword.model.probe.probe import choose
from foreword.model.probe.trial import probe_text
from tiny_models import VOCAB, build


def test_a_model_that_takes_our_attention_scores_trees():
    backend, capability = choose(build("llama-gqa"), swaps := [])
    assert backend.mode is capability.mode is Mode.TREE
    assert 0 < capability.error < 1e-3
    assert swaps
    assert "draft trees" in capability.reason


def test_missing_window_is_found_without_a_wrong_score():
    """The window is longer than the texts of the probe, so every score is right."""
    model = build("mistral")
    model.config.sliding_window = 200
    for layer in model.model.layers:
        layer.self_attn.config = Forgetful(model.config)
    _, capability = choose(model, [])
    assert capability.mode in (Mode.CACHE, Mode.PLAIN)
    assert "window" in capability.reason


class Forgetful:
    """A configuration that answers everything but the window."""

    sliding_window = None

    def __init__(self, config: object) -> None:
        self._config = config

    def __getattr__(self, name: str) -> object:
        return getattr(self._config, name)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [("pool", Mode.TREE), ("cache", Mode.CACHE), ("plain", Mode.PLAIN)],
)
def test_backend_can_be_chosen(backend, mode):
    model, best = (
        Model.load(starter.draft(), dtype="bfloat16", backend=one)
        for one in (backend, None)
    )
    assert model.capability.backend == backend
    assert model.mode == mode
    assert model.capability.refused == ()
    for one in (model, best):
        one.open(1, 16)
    said, same = (one.read([Read(1, 0, [5])]).float() for one in (model, best))
    torch.testing.assert_close(said, same, atol=0.3, rtol=0.05)


def test_impossible_backend_is_refused():
    with pytest.raises(ModelError, match="it is made for bfloat16 on CPU"):
        Model.load(starter.draft(), dtype="float32", backend="native")
    with pytest.raises(ModelError, match=r"run this model on backend 'pool': .*; "):
        Model(build("mamba"), backend="pool")
    ways = "backend='pol': choose one of native, graph, pool, cache, plain, or leave it out"
    with pytest.raises(InvalidRequest, match=ways):
        Model.load(starter.draft(), backend="pol")
    with pytest.raises(InvalidRequest, match=ways):
        Model(build("llama"), backend="pol")


@pytest.mark.filterwarnings("ignore:.*runs in mode")
@pytest.mark.parametrize("name", ["llama", "falcon", "mamba"])
def test_known_capability_is_not_probed_again(name):
    first = Model(build(name))
    again = Model(build(name), known=first.capability)
    assert again.mode is first.mode
    assert type(again.backend) is type(first.backend)
    assert build_backend(build(name), first.capability, []).mode is first.mode


def test_model_scoring_one_token_keeps_its_layers():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = Model(build("mamba"))
    assert model.mode is Mode.PLAIN
    assert not any(isinstance(module, PackedLinear) for module in model.hf.modules())
    (warning,) = [
        str(one.message) for one in said if "runs in mode" in str(one.message)
    ]
    assert "'plain'" in warning
    assert all(backend in warning for backend in ("native", "pool", "cache"))


def test_a_broken_score_in_a_tree_is_found(monkeypatch):
    """Attention where siblings see each other scores chains right and trees wrong."""
    from foreword.model.kv.reads import Span

    monkeypatch.setattr(Span, "branches", lambda span: [span.chain])
    _, capability = choose(build("llama"), [])
    assert capability.mode is Mode.CHAIN
    assert "scores differ" in capability.refused[-1][1]


@torch.no_grad()
def with_outliers(kind: str) -> PreTrainedModel:
    """A model with the numbers of a published one, in bfloat16."""
    model = build("gemma2" if kind == "soft cap" else "llama-gqa").bfloat16()
    words = model.get_input_embeddings().weight
    if kind == "sink":  # some tokens have a thousand times the norm of the others
        words[::16] *= 1000
    elif kind == "channel":  # which norms hide
        words[:, 5] = 1000
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight *= 100
                weight[5] = 0.001
    else:  # large tied embeddings: logits near their cap
        words *= 4
    return model


OUTLIERS = ["sink", "channel", "soft cap"]


@pytest.mark.parametrize("backend", ["native", "pool"])
@pytest.mark.parametrize("kind", OUTLIERS)
def test_outliers_are_no_reason_to_refuse(kind, backend):
    Model(with_outliers(kind), backend=backend)


@pytest.mark.parametrize("kind", OUTLIERS)
def test_wrong_layer_is_found_beside_outliers(kind, monkeypatch):
    describe = NativeBackend.describe

    def without_attention(self, *arguments):
        describe(self, *arguments)
        self.skip([1], [])

    monkeypatch.setattr(NativeBackend, "describe", without_attention)
    with pytest.raises(ModelError, match="scores differ from the model's own"):
        Model(with_outliers(kind), backend="native")


def test_last_token_of_an_odd_vocabulary_is_read():
    config = build("llama").config
    config.vocab_size = 33
    model = tiny_models.random(config)
    assert 32 in probe_text(model)
    assert Model(model).mode is Mode.TREE


def test_native_reads_no_embedding_past_the_last():
    model = build("llama").bfloat16()
    model.lm_head = torch.nn.Linear(64, VOCAB + 16, bias=False, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="tokens without an embedding"):
        Model(model, backend="native")
