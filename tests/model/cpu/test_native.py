"""The C forward against its model; the bits of a row depend on its text alone."""

from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers as hf

import starter
import tiny_models
from foreword.model.executors.native.build import build, refused
from foreword.model.kv.reads import Read
from grids import NEEDS_C, slow_case
from tiny_models import random, with_truth
from tiny_native import check_near_truth, owned
from tiny_sizes import FULL, LINEAR, SLIDING, decoder, linear, sizes

pytestmark = NEEDS_C

ROPE: dict[str, Any] = dict(rope_type="default", rope_theta=100.0)
LINEARLY: dict[str, Any] = dict(rope_type="linear", factor=4.0)
WINDOW: dict[str, Any] = dict(sliding_window=40, layer_types=[SLIDING, FULL])
TIED = dict(tie_word_embeddings=True)
WIDE = {
    "heads of 32, window": hf.MistralConfig(**decoder(head_dim=32, sliding_window=40)),
    "heads of 96": hf.LlamaConfig(**decoder(), head_dim=96),
    "heads of 128": hf.LlamaConfig(**decoder(), head_dim=128),
    "an MLP that 32 rows fill a cache with": hf.LlamaConfig(
        **decoder(intermediate_size=8192)
    ),
    "a vocabulary of odd size": hf.LlamaConfig(**decoder(vocab_size=331)),
    "tied, of odd size, capped": hf.Gemma2Config(
        **decoder(vocab_size=321),
        head_dim=16,
        query_pre_attn_scalar=16,
        final_logit_softcapping=0.5,
    ),
    "granite, of odd size": hf.GraniteConfig(
        **decoder(vocab_size=345),
        **TIED,
        embedding_multiplier=6.0,
        residual_multiplier=0.3,
        attention_multiplier=0.1,
        logits_scaling=4.0,
    ),
    "tied, half a panel left": hf.LlamaConfig(**decoder(vocab_size=336), **TIED),
    "gemma2, heads of 64": hf.Gemma2Config(
        **decoder(),
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=40,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=0.5,
        tie_word_embeddings=False,
    ),
    "half of each head turned": hf.Phi3Config(
        **decoder(pad_token_id=0),
        rope_parameters=ROPE | dict(partial_rotary_factor=0.5),
    ),
    "olmo3, layers that turn otherwise": hf.Olmo3Config(
        **decoder(), **WINDOW, rope_parameters={SLIDING: ROPE, FULL: ROPE | LINEARLY}
    ),
    "gemma3 that sees": hf.Gemma3Config(
        text_config=dict(**decoder(head_dim=32, query_pre_attn_scalar=16), **WINDOW),
        vision_config=sizes(32, 32, 2, layers=1, image_size=28, patch_size=14),
        mm_tokens_per_image=4,
        image_token_index=319,
        boi_token_index=318,
        eoi_token_index=317,
    ),
    "gpt-oss": hf.GptOssConfig(
        **decoder(head_dim=32, sliding_window=40),
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen3.5, states of 32 by 144": hf.Qwen3_5TextConfig(
        **decoder(hidden_size=128, num_hidden_layers=4, initializer_range=0.05),
        head_dim=32,
        layer_types=[LINEAR] * 2 + [FULL, LINEAR],
        **linear(8, 32, 144),
    ),
}
"""Heads of one half of matrix registers, one and a half, two; and rare ones."""
PLAIN = "family llama-gqa mistral qwen2 qwen3 gemma gemma3 phi3 olmo2 smollm3 lfm2"
NAMES = [*PLAIN.split(), *WIDE]
"""Plain, shared heads, windows, biases, norms before and after; unseen places."""
LENGTH = 150
"""More than one product over keys takes at once."""
PARENTS = [-1, 0, 1, -1, 3, 3, 5]
ROWS = [2, 3, 6, 7, 12, 13, 16, 17, 30]
FEW = {
    "family",
    "heads of 96",
    "tied, of odd size, capped",
    "gemma2, heads of 64",
    "gpt-oss",
    "qwen3.5, states of 32 by 144",
}
every_kind = pytest.mark.parametrize("models", NAMES, indirect=True, scope="module")
FEWER = [name if name in FEW else slow_case(name) for name in NAMES]
few_kinds = pytest.mark.parametrize("models", FEWER, indirect=True, scope="module")
"""Scores are compared for every kind, on all registers; bits for kinds that differ in
their attention. `make test-all` compares the others.
"""


@pytest.fixture(scope="module")
def models(request):
    """A model in bfloat16 for the backend; the same weights in float32 as truth."""
    if request.param in WIDE:
        return with_truth(random(WIDE[request.param]))
    if request.param == "family":
        load = hf.AutoModelForCausalLM.from_pretrained
        return with_truth(load(starter.target(), dtype=torch.bfloat16))
    return with_truth(tiny_models.build(request.param))


@lru_cache(maxsize=1)
def driven(model, registers: str):
    """The backend of a model; the tests of a kind follow one another."""
    return build(model)


@pytest.fixture
def backend(models, registers, request):
    backend = driven(models[0], request.node.callspec.params["registers"])
    backend.open(1, 4 * LENGTH)
    yield backend
    for opened in (1, 2, 3):
        backend.close(opened)


@pytest.fixture
def text(models):
    generator = torch.Generator().manual_seed(1)
    vocab = models[0].config.get_text_config().vocab_size
    return torch.randint(vocab - 8, (LENGTH,), generator=generator).tolist()


@every_kind
def test_scores_are_those_of_the_model(models, backend, text):
    assert refused(models[0]) is None
    check_near_truth(models, backend, text)
    size = models[0].config.get_text_config().hidden_size
    noise = torch.Generator().manual_seed(1)
    states = torch.randn(5, size, generator=noise).bfloat16()
    with torch.inference_mode():
        truth = models[1].get_output_embeddings()(states.float())
    torch.testing.assert_close(backend.lm_head(states), truth, rtol=0.01, atol=0.01)


def one_by_one(backend, text, places):
    reads = [Read(1, place, [text[place]], keep=1) for place in places]
    return torch.cat([backend.read([read]) for read in reads])


@few_kinds
def test_row_does_not_depend_on_rows_beside_it(backend, text):
    backend.read([Read(1, 0, text[:20], keep=0)])
    alone = one_by_one(backend, text, range(20, 20 + max(ROWS)))
    for rows in ROWS:
        together = backend.read([Read(1, 20, text[20 : 20 + rows], keep=rows)])
        assert torch.equal(alone[:rows], together), f"{rows} rows"


@few_kinds
def test_rows_of_a_long_text_are_independent(backend, text):
    long, tree = text + text[:30], text[: len(PARENTS)]
    together = backend.read([Read(1, 0, long, keep=30)])
    alone = one_by_one(backend, long, range(len(long) - 30, len(long)))
    assert torch.equal(alone, together)
    draft_tokens = backend.read([Read(1, len(long), tree, PARENTS, keep=len(tree))])
    nodes = [tree[node] for node in (3, 5, 6)]
    branch = backend.read([Read(1, len(long), nodes, keep=3)])
    assert torch.equal(draft_tokens[[3, 5, 6]], branch)


@few_kinds
def test_tree_may_be_read_in_pieces(backend, text):
    whole = backend.read([Read(1, 0, text[:30], PARENTS, keep=7)])
    backend.read([Read(1, 0, text[:23], keep=0)])
    pieces = []
    for a, b in ((0, 1), (1, 5), (5, 7)):
        read = Read(1, 23, text[23 + a : 23 + b], PARENTS[:b], b - a, a)
        pieces.append(backend.read([read]))
    assert torch.equal(torch.cat(pieces), whole)


@few_kinds
def test_sequence_does_not_depend_on_the_batch_or_on_threads(backend, text):
    alone = backend.read([Read(1, 0, text[:30], keep=3)])
    backend.open(2, 100)
    backend.open(3, 100)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        reads = [
            Read(2, 0, text[5:50], keep=1),
            Read(1, 0, text[:30], keep=3),
            Read(3, 0, text[9:10], keep=1),
        ]
        together = backend.read(reads)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together[1:4], alone)


@few_kinds
@pytest.mark.parametrize("held", [18, slow_case(26), 61, 93])
def test_node_of_a_tree_scores_as_its_path(backend, text, held):
    first_chain, nodes = text[: held + 3], text[held + 3 : held + 3 + len(PARENTS)]
    backend.read([Read(1, 0, first_chain[:held], keep=0)])
    rest = first_chain[held:] + nodes
    tree = backend.read([Read(1, held, rest, PARENTS, keep=len(nodes) + 1)])
    backend.open(2, 100)
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append(([] if parent < 0 else paths[parent]) + [nodes[node]])
        plain = backend.read([Read(2, 0, first_chain + paths[-1], keep=1)])
        assert torch.equal(tree[node + 1 : node + 2], plain), f"node {node}"


@few_kinds
def test_memory_beyond_a_text_is_not_read(backend, text):
    clean = backend.read([Read(1, 0, text[:70], PARENTS, keep=7)])
    for page in backend.pool._storage:
        page.fill_(torch.nan)
    assert torch.equal(backend.read([Read(1, 0, text[:70], PARENTS, keep=7)]), clean)


@few_kinds
def test_accepted_branch_is_moved_and_kept_as_the_pool_grows(backend, text):
    first_chain, nodes, branch = text[:21], text[21 : 21 + len(PARENTS)], [3, 5, 6]
    backend.read([Read(1, 0, first_chain + nodes, PARENTS, keep=0)])
    backend.move(1, [len(first_chain) + node for node in branch], len(first_chain))
    backend.open(2, 5000)
    backend.open(3, 5000)
    said = first_chain + [nodes[node] for node in branch]
    after = backend.read([Read(1, len(said), text[40:43], keep=3)])
    plain = backend.read([Read(3, 0, said + text[40:43], keep=3)])
    assert torch.equal(after, plain)
    backend.close(3)
    assert torch.equal(
        backend.read([Read(2, 0, said, keep=1)]),
        backend.read([Read(1, 0, said, keep=1)]),
    )


@few_kinds
def test_owned_model_is_held_once_and_restored(models, text):
    source = models[0]
    tied = source.config.tie_word_embeddings
    every = torch.arange(source.config.get_text_config().vocab_size).repeat(2, 1)
    kept = build(source)
    kept.open(1, LENGTH)
    with owned(source, kept, text) as (model, backend):
        assert model.get_output_embeddings().weight.numel() == 0
        assert (model.get_input_embeddings().weight.numel() == 0) is tied
        assert torch.equal(backend.embed(every), source.get_input_embeddings()(every))
