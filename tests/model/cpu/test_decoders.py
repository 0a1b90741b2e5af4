"""Decoders of encoder-decoders in C against their models; bits are a row's own."""

import copy
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import tiny_seq2seq
import tiny_whisper
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.native.sources import NativeSources
from foreword.model.loading.in_memory import borrow
from foreword.model.probe.trial import ROUNDED
from foreword.types import Features
from grids import NEEDS_C

pytestmark = NEEDS_C

WHISPER = "whisper v2"
NAMES = ["t5", "flan-t5", "mt5", "umt5", "t5, heads of 32", WHISPER]
LENGTHS = (1, 2, 16, 63, 64, 65, 150, 700)
"""Tokens of sources: a row, whole pages and blocks, several, and a long one."""
PARENTS = [-1, 0, 1, -1, 3, 3, 0]


def noise(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(60, 310, (length,), generator=generator).tolist()


def built(name: str, *, tied: bool = False) -> PreTrainedModel:
    whole = tiny_whisper.build("v2") if name == WHISPER else tiny_seq2seq.build(name)
    if tied:
        head = type(whole.get_output_embeddings())
        whole.set_output_embeddings(head(64, tiny_seq2seq.VOCAB, bias=False))
        whole.get_output_embeddings().weight = whole.get_input_embeddings().weight
        whole.config.scale_decoder_outputs = True
    return whole.bfloat16().eval()


@cache
def truth(name: str) -> PreTrainedModel:
    return copy.deepcopy(built(name)).float()


@cache
def model(name: str) -> Model:
    own = Model(built(name), name)
    assert own.capability.backend == "native"
    return own


@cache
def sources(name: str) -> list:
    if name != WHISPER:
        return [noise(length, length) for length in LENGTHS]
    generator = torch.Generator().manual_seed(1)
    return [Features(torch.rand(80, 300, generator=generator)) for _ in LENGTHS]


def opened(name: str, id: int, source: int = 0, capacity: int = 128) -> None:
    model(name).open(id, capacity)
    model(name).give(id, sources(name)[source])


def expected(hf: PreTrainedModel, source, text: list[int]) -> torch.Tensor:
    """Return the model's own scores after each token of a text."""
    if isinstance(source, Features):
        inputs = dict(input_features=source.mels[None].to(hf.dtype))
    else:
        inputs = dict(input_ids=torch.tensor([source]))
    inputs["decoder_input_ids"] = torch.tensor([text])
    with torch.inference_mode():
        return hf(**inputs, use_cache=False).logits[0].float()


def deviation(scores: torch.Tensor, reference: torch.Tensor) -> float:
    return float((scores - reference).abs().max() / reference.std())


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_model_for_each_source(name):
    texts = [noise(3 + 5 * number, 50 + number) for number in range(len(LENGTHS))]
    for row in range(len(LENGTHS)):
        opened(name, row, row)
    reads = [Read(row, 0, text, keep=len(text)) for row, text in enumerate(texts)]
    scores = model(name).read(reads).split([*map(len, texts)])
    for row, (part, text) in enumerate(zip(scores, texts, strict=True)):
        reference = expected(truth(name), sources(name)[row], text)
        assert deviation(part, reference) < ROUNDED / 2, f"source of {LENGTHS[row]}"
        model(name).close(row)
    other = expected(truth(name), sources(name)[0], texts[2])
    assert deviation(scores[2], other) > ROUNDED, "the source matters"


@pytest.mark.parametrize("name", NAMES)
def test_tree_has_the_bits_of_its_chains(name):
    text, draft = noise(70, 3), noise(len(PARENTS), 4)
    opened(name, 0, 6)
    scores = model(name).read([Read(0, 0, text + draft, PARENTS, keep=len(PARENTS))])
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append(([] if parent < 0 else paths[parent]) + [draft[node]])
        opened(name, 1, 6)
        chain = model(name).read([Read(1, 0, text + paths[-1], keep=1)])[0]
        assert torch.equal(scores[node], chain)
        reference = expected(truth(name), sources(name)[6], text + paths[-1])[-1]
        assert deviation(scores[node], reference) < ROUNDED / 2
    kept, after = [3, 5], noise(2, 5)
    model(name).move(0, [len(text) + node for node in kept], len(text))
    moved = model(name).read([Read(0, len(text) + 2, after, keep=2)])
    opened(name, 1, 6)
    again = model(name).read([Read(1, 0, text + paths[5] + after, keep=2)])
    assert torch.equal(moved, again)


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_the_batch(name):
    one, text = model(name), noise(90, 9)
    for row, source in enumerate((4, 4, 7, 0)):
        opened(name, row, source)
    reads = [Read(0, at, [token], keep=1) for at, token in enumerate(text)]
    alone = torch.cat([one.read([read]) for read in reads])
    together = []
    for start, stop in ((0, 1), (1, 18), (18, 20), (20, 90)):
        reads = [
            Read(2, 0, noise(start + 1), keep=1),
            Read(1, start, text[start:stop], keep=stop - start),
            Read(3, 0, noise(40), keep=1),
        ]
        together.append(one.read(reads)[1:-1])
    assert torch.equal(alone, torch.cat(together))


@pytest.mark.parametrize("rows", [1, 40])
def test_bits_do_not_depend_on_threads(rows):
    sizes = dict(d_model=256, d_kv=32, num_heads=8, d_ff=1024, num_layers=1)
    sizes |= dict(num_decoder_layers=8, vocab_size=320, decoder_start_token_id=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = T5Config(**sizes, feed_forward_proj="gated-gelu")
        hf = T5ForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    hf.eval()
    one, before, scores = Model(hf, "t5"), torch.get_num_threads(), []
    one.open(0, 256)
    one.give(0, noise(200))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert one.backend.threads == threads
            texts = [noise(rows, number) for number in range(5)]
            reads = [Read(0, rows * n, text, keep=rows) for n, text in enumerate(texts)]
            scores.append(torch.cat([one.read([read]) for read in reads * 3]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("name", ["t5", "umt5", "t5, heads of 32"])
def test_a_text_of_any_length_has_its_position_biases(name):
    text = noise(1300, 2)
    opened(name, 0, 3, capacity=2048)
    model(name).read([Read(0, 0, text[:900], keep=1)])
    scores = model(name).read([Read(0, 900, text[900:], keep=8)])
    reference = expected(truth(name), sources(name)[3], text)[-8:]
    assert deviation(scores, reference) < ROUNDED / 2


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
def test_a_tied_head_shares_its_weight_with_both_embeddings(name):
    hf = built(name, tied=True)
    reference = copy.deepcopy(hf).float()
    own = Model(hf, name)
    assert own.capability.backend == "native"
    own.open(0, 64)
    own.give(0, sources(name)[4])
    text = noise(20)
    layers = (0, len(hf.decoder.block))
    scores, states = own.read_hidden([Read(0, 0, text, keep=20)], layers)
    wanted = expected(reference, sources(name)[4], text)
    assert deviation(scores, wanted) < ROUNDED / 2
    assert torch.equal(own.lm_head(states[:, 64:]), scores)
    assert torch.equal(states[:, :64], hf.shared(torch.tensor(text)))
    own.backend.restore()
    assert hf.lm_head.weight is hf.shared.weight is hf.encoder.embed_tokens.weight
    assert deviation(expected(hf, sources(name)[4], text), wanted) < ROUNDED / 2


@pytest.mark.parametrize("name", ["flan-t5", WHISPER])
def test_a_borrowed_model_stays_as_it_is(name):
    hf, text = built(name), noise(9)
    before = expected(hf, sources(name)[2], text)
    wanted = copy.deepcopy(hf.state_dict())
    with borrow(hf) as own:
        assert own.backend.memory(NativeSources) is not None
        with own.single_torch_thread():
            own.open(0, 32)
            own.give(0, sources(name)[2])
            assert deviation(own.read([Read(0, 0, text, keep=9)]), before) < ROUNDED
    state = hf.state_dict()
    assert all(torch.equal(state[name], wanted[name]) for name in state)
    assert torch.equal(expected(hf, sources(name)[2], text), before)


def test_pages_of_a_source_are_freed_with_its_sequence():
    for row in range(10):
        model("t5").close(row)
    pool = model("t5").backend.pool
    assert pool.held == 0
    opened("t5", 7, 6)
    model("t5").read([Read(7, 0, [5])])
    assert pool.held == (3 + 1) * 64, "a source of 150 tokens, and the text"
    opened("t5", 7, 0)
    assert pool.held == 64, "the source before is freed"
    model("t5").close(7)
    assert pool.held == 0
    model("t5").open(7, 64)
    with pytest.raises(ModelError, match="cannot read sequence 7: it has no source"):
        model("t5").read([Read(7, 0, [5])])
    model("t5").close(7)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_give_near_scores(weights):
    own = Model(built("flan-t5"), "flan-t5")
    own.quantize(weights)
    text, source = noise(30), sources("flan-t5")[5]
    for row in (0, 1):
        own.open(row, 64)
        own.give(row, source)
    whole = own.read([Read(0, 0, text, keep=30)])
    steps = [own.read([Read(1, at, [token])]) for at, token in enumerate(text)]
    assert torch.equal(whole, torch.cat(steps))
    reference = expected(truth("flan-t5"), source, text)
    assert 0.01 < float((whole - reference).std() / reference.std()) < 0.5
    assert own.weights == weights


def other_activation(hf: PreTrainedModel) -> None:
    hf.config.dense_act_fn = "tanh"


def other_dtype(hf: PreTrainedModel) -> None:
    hf.decoder.block[1].layer[-1].DenseReluDense.wo.float()


def scaled_scores(hf: PreTrainedModel) -> None:
    hf.decoder.block[0].layer[0].SelfAttention.scaling = 0.5


def test_parts_that_the_c_code_lacks_are_refused():
    for change, reason in (
        (other_activation, "its sizes, its activation or its biases"),
        (other_dtype, "some of its weights are not bfloat16"),
        (scaled_scores, "it scales the scores"),
    ):
        hf = built("t5")
        change(hf)
        with pytest.raises(ModelError, match=f"on backend 'native': {reason}"):
            Model(hf, "t5", backend="native")
    with pytest.raises(ModelError, match="it does not run the decoder of Bart"):
        Model(built("bart"), "bart", backend="native")
