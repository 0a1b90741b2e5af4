"""Draft models in 8 bits: their scores, their memory, and what they refuse."""

import pytest
import torch

import starter
import tiny_models
from foreword import LLM, SamplingParams, bundled
from foreword.draft.cross_vocab.pairing import load_pair
from foreword.draft.ensemble.cascade import CascadeDrafter
from foreword.draft.ensemble.recipe import quantized
from foreword.draft.heads.dspark import DSparkDrafter
from foreword.draft.heads.eagle import EagleDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.suffix import SuffixDrafter
from foreword.draft.self_speculative.base import SPARE, SelfDrafter
from foreword.errors import InvalidRequest, ModelError
from foreword.hf.borrowed import ModelRecord
from foreword.model import Model, Read
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.rows import Rows
from foreword.model.view import view
from foreword.native import forward
from foreword.native.workspace import multiplied
from foreword_lab.bench.lineup import Weights
from foreword_lab.bench.lineup import _drafter as lined_up
from grids import NEEDS_C
from other_tokenizers import NEAR
from running import prompts, target, tokenizer

pytestmark = NEEDS_C
KINDS = (
    "llama-gqa qwen2 qwen3 gemma3 phi3 granite lfm2 qwen3.5 qwen2-moe gpt-neox".split()
)
KINDS += ["gpt-oss"]


def loaded() -> Model:
    return Model.load(starter.draft(), dtype="bfloat16", device="cpu")


def text(vocab: int, length: int = 48) -> list[int]:
    return [token % vocab for prompt in prompts() for token in prompt][:length]


def said(model: Model, tokens: list[int]) -> torch.Tensor:
    model.open(9, 100)
    logits = model.read([Read(9, 0, tokens, keep=len(tokens))])
    model.close(9)
    return logits


def overlap(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.minimum(one.softmax(-1), other.softmax(-1)).sum(-1).mean())


def held(backend: NativeBackend) -> int:
    return sum(tensor.nbytes for tensor in backend.matrices.held)


def test_scores_are_near_from_half_of_the_bytes():
    model, tokens = loaded(), text(8192)
    whole = said(model, tokens)
    viewed = said(view(model, bits=8), tokens)
    bytes_before = held(model.backend)
    # its embeddings, which are its head as well, stay as they are
    table = model.backend._table.nbytes
    model.quantize_int8()
    found = said(model, tokens)
    assert 0.97 < overlap(found, whole) < 1
    assert torch.equal(found, viewed)
    assert held(model.backend) - table < 0.53 * bytes_before
    model.quantize_int8()
    assert torch.equal(said(model, tokens), found)


def test_embeddings_are_what_they_were():
    model, tokens = loaded(), torch.tensor(text(8192))
    before = model.embed(tokens)
    model.quantize_int8()
    assert torch.equal(model.embed(tokens), before)


@pytest.mark.parametrize("name", KINDS)
def test_every_native_kind_can_be_quantized(name):
    tokens = text(tiny_models.VOCAB)
    model = Model(tiny_models.build(name).to(torch.bfloat16))
    assert model.capability.backend == "native"
    whole = said(model, tokens)
    model.quantize_int8()
    found = said(model, tokens)
    # random weights are larger than learnt ones
    assert (found - whole).pow(2).mean().sqrt() < 0.2 * whole.std()
    model.open(1, 100)
    model.read([Read(1, 0, tokens[:20], keep=0)])
    one_by_one = torch.cat(
        [model.read([Read(1, 20 + i, [tokens[20 + i]])]) for i in range(8)]
    )
    assert torch.equal(one_by_one, found[20:28])


@pytest.mark.skipif(not forward.amx(), reason="products are made in one way here")
def test_sums_are_exact_with_any_instructions():
    model, tokens = loaded(), text(8192, 23)
    model.quantize_int8()
    found = model.lm_head(model.embed(torch.tensor(tokens)))
    forward.needed().foreword_use_amx(0)
    try:
        assert torch.equal(model.lm_head(model.embed(torch.tensor(tokens))), found)
    finally:
        forward.needed().foreword_use_amx(1)


def test_zeros_and_huge_numbers_can_be_multiplied():
    model = loaded()
    model.quantize_int8()
    rows = torch.randn(
        3, model.hf.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    rows[1] = 0
    found = model.lm_head(torch.cat([rows, 2.0**20 * rows[:1]]))
    assert not found[1].any()
    assert torch.equal(found[3], 2.0**20 * found[0])


def test_weights_cannot_be_had_back():
    model = loaded()
    model.quantize_int8()
    with pytest.raises(ModelError, match="are quantized"):
        model.backend.restore()
    with pytest.raises(InvalidRequest, match="are quantized"):
        view(model, bits=4)


def test_models_that_c_does_not_read_stay_as_they_are():
    model = Model.load(starter.draft(), dtype="float32", device="cpu")
    before = said(model, text(8192))
    model.quantize_int8()
    assert torch.equal(said(model, text(8192)), before)


def coding(model: Model) -> int:
    return model.backend.model.coding


def test_draft_model_is_quantized_and_the_target_is_not():
    paths = {
        "target": starter.target(),
        "draft": starter.draft(),
        "dtype": "bfloat16",
        "device": "cpu",
    }
    asked = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True)
    served = LLM(**paths, method="lm")
    assert coding(served.engine.drafter.model) == forward.BYTES
    assert coding(served.target) == forward.WHOLE
    answers = {
        tuple(one.generate("The river", asked)[0].tokens)
        for one in (served, LLM(**paths | {"draft": None}))
    }
    assert len(answers) == 1
    source = Weights(str(starter.target()), str(starter.draft()), torch.bfloat16, None)
    pair = lined_up("lm", served.target, served.tokenizer, source)
    assert coding(pair.model) == forward.BYTES


def test_target_is_never_quantized():
    model = target("bfloat16")
    for drafter in (LanguageModelDrafter(model), SelfDrafter(view(model, spare=SPARE))):
        quantized(drafter, model)
    assert coding(model) == forward.WHOLE
    joined = CascadeDrafter(
        [SuffixDrafter.load(None, model, None), LanguageModelDrafter(loaded())]
    )
    quantized(joined, model)
    assert coding(joined.members[1].model) == forward.BYTES


def test_loaded_heads_are_quantized():
    beside = Model.load(bundled.target(), dtype="bfloat16", device="cpu")
    heads = bundled.target().parent / "heads"
    eagle = EagleDrafter.load(heads / "eagle", beside, None)
    dspark = DSparkDrafter.load(heads / "dspark", beside, None)
    head = eagle.executor
    assert [head.model.coding, head._fc.coding] == [forward.BYTES] * 2
    stack = dspark.blocks.executor
    assert [stack.model.coding, stack._fc.coding] == [forward.BYTES] * 2


def plain_products(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The definition of products with 8 bits: an exact sum, rounded once, scaled."""
    rows, weight = rows.bfloat16().float(), weight.float()
    largest = rows.abs().amax(-1, keepdim=True)
    top = weight.abs().amax(-1, keepdim=True)
    # a number over a tensor is a product in torch
    limit, steps = torch.tensor(127.0 * 128), torch.tensor(127.0)
    integers = torch.where(largest > 0, rows * (limit / largest), 0).round().long()
    sums = integers @ (weight * (steps / top)).round().long().T
    return (largest / limit) * (top * torch.tensor(1 / 127)).T * sums.float()


@pytest.mark.usefixtures("registers")
@pytest.mark.parametrize(
    ("depth", "outputs"), [(4096, 48), (16384, 32), (1024, 64), (80, 16)]
)
def test_sums_of_any_depth_are_exact(depth, outputs):
    """Whatever registers make them: of random numbers, and of the largest alike."""
    generator = torch.Generator().manual_seed(depth)
    weight = torch.randn(outputs, depth, generator=generator).bfloat16()
    weight[3] = weight.abs().max()
    matrix = Matrix(weight)
    matrix.quantize()
    rows = torch.randn(20, depth, generator=generator)
    rows[1], rows[2], rows[3] = rows.max(), -3.0, 0
    assert torch.equal(matrix.times(rows), plain_products(rows, weight))


class Matrix(NativeExecutor):
    """A packed matrix and nothing else."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(Rows([], 0), Angles([]))
        self._only = forward.Model(
            hidden=weight.shape[1], vocab=len(weight), head=self.matrices.pack(weight)
        )
        self.describe(self._only, 1)

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        return multiplied(self.library, self._only, self.scratch, rows, 2)


def test_other_draft_models_are_quantized(tmp_path):
    pair = load_pair(NEAR.save(tmp_path), target("bfloat16"), tokenizer())
    assert coding(pair.model) == forward.BYTES
    model = ModelRecord().draft(str(starter.draft()), target("bfloat16"))
    assert coding(model) == forward.BYTES
