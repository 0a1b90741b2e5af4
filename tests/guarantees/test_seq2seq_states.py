"""Encoder-decoders drafted by their layers and by heads on hidden states."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch

import tiny_seq2seq
from foreword import LLM, SamplingParams
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.medusa import MedusaHeads
from foreword.model import Model, Read
from foreword.model.head_layers import LlamaConfig
from foreword.model.layers import layer_count, layers_of
from foreword.model.skip import LayerSkip
from foreword.model.view import view
from tiny_sizes import sizes

FAMILIES = ["t5", "bart", *tiny_seq2seq.in_c("t5")]
SOURCES = [list(range(60, 60 + length)) for length in (1, 5, 30, 66)]
ASKED = [
    SamplingParams(temperature=t, seed=3, max_tokens=20, ignore_eos=True)
    for t in (0, 0, 0.3, 0.3)
]


@cache
def target(name: str) -> Model:
    """A model that scales states or adds a bias, and often repeats its last token."""
    own = tiny_seq2seq.build(name)
    own.lm_head.weight = torch.nn.Parameter(
        own.get_input_embeddings().weight.detach().clone()
    )
    if "t5" in name:
        own.config.scale_decoder_outputs = True
        own.lm_head.weight.data *= 8
    else:
        own.final_logits_bias += 0.1 * torch.randn(
            tiny_seq2seq.VOCAB, generator=torch.Generator().manual_seed(1)
        )
    return Model(own, name)


def llm(name: str, method: str, draft: Path | None = None) -> LLM:
    tokenizer = tiny_seq2seq.tokenizer(name)
    return LLM(
        target(name), tokenizer=tokenizer, method=method, draft=draft, slots=3, nodes=4
    )


@cache
def plain(name: str) -> list[list[int]]:
    one = llm(name, "none")
    return [
        one.generate(source, [asked])[0].tokens
        for source, asked in zip(SOURCES, ASKED, strict=True)
    ]


def eagle(name: str) -> EagleHead:
    """A random head that knows only the tokens written most often."""
    llama = LlamaConfig(
        vocab_size=tiny_seq2seq.VOCAB,
        max_position_embeddings=96,
        rms_norm_eps=1e-6,
        **sizes(64, 64, 4, 2, head_dim=16),
    )
    layers = layer_count(target(name).hf.config)
    torch.manual_seed(0)
    head = EagleHead(
        EagleConfig(llama=llama, states=(0, 1, layers), target_hidden=64, draft_vocab=3)
    )
    written = Counter(token for text in plain(name) for token in text)
    tokens = torch.tensor(sorted(token for token, _ in written.most_common(3)))
    head.d2t.copy_(tokens - torch.arange(3))
    return head


def drafted(name: str, method: str, folder: Path) -> Path:
    if method == "layers":
        return Path("exit:1")
    if method == "medusa":
        heads = MedusaHeads(2, 1, 64, tiny_seq2seq.VOCAB, own=False)
        heads.dump(torch.float32).write(folder)
    else:
        dump(eagle(name), torch.float32, target(name).hf.config).write(folder)
    return folder


@pytest.mark.sample(4)
@pytest.mark.parametrize("method", ["layers", "medusa", "eagle"])
@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_change_no_token(name, method, tmp_path):
    answers = llm(name, method, drafted(name, method, tmp_path / "draft")).generate(
        SOURCES, ASKED
    )
    assert [answer.tokens for answer in answers] == plain(name)
    assert [answer.undrafted for answer in answers] == [None] * len(answers)
    assert sum(answer.stats.accepted for answer in answers) > 5
    assert target(name).backend.pool.held == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_lm_head_gives_the_scores_of_the_last_states(name):
    model, tokens = target(name), [5, 6, 7, 8, 9]
    model.open(-5, 64)
    model.give(-5, SOURCES[2])
    logits, states = model.read_hidden(
        [Read(-5, 0, tokens, keep=5)], (0, layer_count(model.hf.config))
    )
    model.close(-5)
    assert torch.equal(model.lm_head(states[:, 64:]), logits)
    hidden = model.hf.get_decoder().embed_tokens(torch.tensor(tokens))
    assert "t5" not in name or torch.equal(states[:, :64], hidden)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_skipped_sublayer_adds_nothing(name):
    model = Model(tiny_seq2seq.build(name), name)
    skip = LayerSkip(frozenset({0}), frozenset({1}))
    changed = tiny_seq2seq.build(name)
    for number, layer in enumerate(layers_of(changed)):
        last = (
            [layer.layer[0].SelfAttention.o, layer.layer[-1].DenseReluDense.wo]
            if "t5" in name
            else [layer.self_attn.out_proj, layer.fc2]
        )
        for part, numbers in zip(last, (skip.attention, skip.mlp), strict=True):
            for weight in part.parameters() if number in numbers else ():
                weight.data.zero_()
    scores = []
    for one in (
        view(model, skip=skip),
        Model(changed, name),
        view(model, skip=skip, spare=32),
    ):
        owner = model if one.backend.pool is model.backend.pool else one
        owner.open(1, 64)
        owner.give(1, SOURCES[3])
        scores.append(
            one.read([Read(1, 0, [5, 6, 7, 8, 9], parents=[-1, -1, 0], keep=4)])
        )
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)
    assert torch.equal(scores[0], scores[2])
