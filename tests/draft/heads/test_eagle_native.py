"""The head in C against its plain definition; a row's bits are its own."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from drafters import AT_ONCE, PARENTS, check_row_bits, check_same, grown, levels, scores
from foreword.draft.heads import eagle
from foreword.draft.heads.eagle import EagleDrafter, NativeEagle, unsupported
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.eagle_published import load
from foreword.draft.heads.reader import StateReader
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.native.forward import reason
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams
from foreword_train.methods.eagle import new
from foreword_train.registry import EagleOptions
from grids import NEEDS_C
from pair import VOCAB, llama, setting
from running import sayings, shelf, target

KINDS = [
    "reduced",
    "reduced to an odd number",
    "whole",
    "own embeddings",
    "normed before",
    "normed after",
    "biased",
    "normed states",
    "normed features",
    "normed queries",
]
LENGTH = 60


def made(kind: str = "reduced") -> EagleHead:
    """A head with random float32 weights; its tokens are neither first nor in a row."""
    torch.manual_seed(2)
    head = new(
        setting(llama(0, layers=8, hidden=64)),
        EagleOptions(draft_vocab=203 if "odd" in kind else 192),
    )
    config = replace(
        head.config,
        embeds=kind == "own embeddings",
        norm_before_residual=kind == "normed before",
        norm_output=kind == "normed after",
        fc_norm=kind == "normed states",
        norm_before_fc=kind == "normed features",
        head_norms=kind == "normed queries",
        draft_vocab=VOCAB if kind == "whole" else head.config.draft_vocab,
    )
    head = EagleHead(config)
    for weight in head.parameters():
        nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.15)
    attention = head.midlayer.self_attn
    for part in (
        (attention.q_proj, attention.k_proj, attention.v_proj)
        if kind == "biased"
        else ()
    ):
        part.bias = nn.Parameter(torch.randn(part.out_features))
    if kind != "whole":
        tokens = torch.randperm(VOCAB)[: config.draft_vocab].sort().values
        head.d2t.copy_(tokens - torch.arange(config.draft_vocab))
    return head


def beside(dtype: torch.dtype) -> Model:
    return Model(llama(0, layers=8, hidden=64).to(dtype))


def plain(
    head: EagleHead, model: Model, monkeypatch: pytest.MonkeyPatch
) -> EagleDrafter:
    with monkeypatch.context() as patch:
        patch.setattr(eagle, "unsupported", lambda *_: "it was asked for")
        return EagleDrafter(head, model)


@pytest.fixture(params=KINDS, scope="module")
def head(request) -> EagleHead:
    return made(request.param)


@pytest.fixture(scope="module")
def native_head(head) -> StateReader:
    drafter = EagleDrafter(copy.deepcopy(head).bfloat16(), beside(torch.bfloat16))
    assert isinstance(drafter.executor, NativeEagle)
    return drafter._reader


@pytest.fixture
def reader(native_head) -> Iterator[StateReader]:
    native_head.open(1, 4 * LENGTH)
    yield native_head
    native_head.close(1)


@pytest.fixture
def text() -> list[int]:
    return torch.randint(
        VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)
    ).tolist()


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(LENGTH, 3 * 64, generator=torch.Generator().manual_seed(3))


@pytest.mark.sample(3)
@NEEDS_C
def test_scores_are_those_of_the_plain_head_up_to_bfloat16(
    head, reader, text, states, monkeypatch
):
    truth = EagleDrafter(copy.deepcopy(head), beside(torch.float32))._reader
    rounded = plain(
        copy.deepcopy(head).bfloat16(), beside(torch.bfloat16), monkeypatch
    )._reader
    found = []
    for asked in (truth, rounded, reader):
        if asked is not reader:
            asked.open(1, 4 * LENGTH)
        found.append(scores(asked, text, states))
    theirs, ours = (
        (one - found[0]).pow(2).mean().sqrt() / found[0].std() for one in found[1:]
    )
    # Hidden states stay in float32 between products here, so we are nearer to the truth
    # than bfloat16 throughout.
    assert ours < theirs
    assert ours < 0.05


@NEEDS_C
def test_row_bits_do_not_depend_on_the_batch(reader, text, states):
    check_row_bits(reader, text, states)


@NEEDS_C
def test_node_follows_the_hidden_state_of_its_parent(reader, text, states):
    """A node says what it says at the end of a chain of its ancestors alone."""
    nodes, branch = text[20 : 20 + len(PARENTS)], [1, 4, 6]

    def after_the_text(reads: list[Read]) -> torch.Tensor:
        reader.target_states.add(1, 0, states[:20])
        reader.read([Read(1, 0, text[:20])])
        return torch.cat([reader.read([read]) for read in reads])

    tree = after_the_text(levels(20, nodes))
    chain = after_the_text(
        [
            Read(1, 20, [nodes[n]], [-1, 0, 1][: i + 1], 1, held=i)
            for i, n in enumerate(branch)
        ]
    )
    assert torch.equal(tree[branch], chain)


@NEEDS_C
def test_node_without_a_read_parent_is_refused(reader, text, states):
    reader.target_states.add(1, 0, states[:20])
    reader.read([Read(1, 0, text[:20])])
    with pytest.raises(
        ModelError, match="cannot read draft tokens before their parents"
    ):
        reader.read([Read(1, 20, text[20:22], [-1, 0], 2)])


def asked(temperature: float) -> tuple[Request, Batch]:
    tokens = list(sayings()[2])
    params = SamplingParams(temperature=temperature, max_tokens=64)
    one = Request(1, tokens, 12, params, seed=7, eos=target("bfloat16").eos)
    return one, Batch(
        (one,), NoiseStreams(target("bfloat16").vocab, shared=True), True, 0.001
    )


def told(drafter: EagleDrafter, one: Request) -> None:
    """The drafter reads what the target computes of all but the last token."""
    model = target("bfloat16")
    model.open(-3, len(one.tokens))
    states = model.read_hidden(
        [Read(-3, 0, one.tokens[:-1], keep=0)], drafter.hidden_layers
    )[1]
    model.close(-3)
    drafter.on_hidden_states(one, 0, states)


@cache
def whole_head() -> EagleHead:
    return load(shelf(EagleOptions(unroll=2, draft_vocab=400)), target().hf.config)


def trainable(dtype: str = "bfloat16", size: int = 400) -> EagleHead:
    """A trained head, of whose 400 tokens the first so many are left."""
    trained = whole_head()
    head = EagleHead(replace(trained.config, draft_vocab=size))
    kept = {
        name: weight[:size]
        for name, weight in trained.state_dict().items()
        if name in ("d2t", "lm_head.weight")
    }
    head.load_state_dict(trained.state_dict() | kept)
    return head.to(getattr(torch, dtype)).eval()


@NEEDS_C
@pytest.mark.parametrize(("most", "size"), [(1, 400), (5, 400), (24, 400), (24, 19)])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_one_call_grows_the_tree_that_levels_grow(temperature, most, size, monkeypatch):
    def start():
        drafter = EagleDrafter(trainable(size=size), target("bfloat16"))
        one, batch = asked(temperature)
        told(drafter, one)
        return drafter, one, batch

    by_level = grown(start, most, monkeypatch, AT_ONCE)
    assert max(by_level[0].depths) > 1 or most == 1, (
        "draft tokens after draft tokens are what this is about"
    )
    check_same(grown(start, most, monkeypatch), by_level)


@NEEDS_C
def test_real_text_has_draft_tokens_of_the_plain_head(monkeypatch):
    model, found = target("bfloat16"), []
    for drafter in (
        EagleDrafter(trainable(), model),
        plain(trainable(), model, monkeypatch),
    ):
        likeliest = []
        for number, text in enumerate(sayings()):
            model.open(-3, len(text))
            states = model.read_hidden(
                [Read(-3, 0, list(text), keep=0)], drafter.hidden_layers
            )[1]
            model.close(-3)
            drafter._reader.open(number, len(text))
            drafter._reader.target_states.add(number, 0, states[:-1])
            said = drafter.logits([Read(number, 0, list(text[1:]), keep=len(text) - 1)])
            likeliest += said.argmax(-1).tolist()
            silent = torch.ones(model.vocab, dtype=torch.bool)
            silent[drafter.vocabulary] = False
            assert bool((said[:, silent] == -torch.inf).all())
        found.append(likeliest)
    same = sum(a == b for a, b in zip(*found, strict=True)) / len(found[0])
    assert same > 0.97
    assert len(set(found[0])) > 20, "always the same draft token would prove nothing"


def test_what_it_is_not_made_for_is_computed_plainly():
    biased = made()
    biased.midlayer.mlp.gate_proj.bias = nn.Parameter(
        torch.zeros(len(biased.midlayer.mlp.gate_proj.weight))
    )
    told = {
        "bfloat16 on CPU": (made(), beside(torch.float32)),
        "not the usual ones": (biased.bfloat16(), beside(torch.bfloat16)),
    }
    for says, (head, model) in told.items():
        if reason() is None or says.startswith("bfloat16"):
            assert says in str(unsupported(head, model))
        assert not isinstance(EagleDrafter(head, model).executor, NativeEagle)


@NEEDS_C
def test_its_weights_are_held_once():
    head = trainable()
    EagleDrafter(head, target("bfloat16"))
    assert {
        len(module.weight) for module in head.modules() if isinstance(module, nn.Linear)
    } == {0}
