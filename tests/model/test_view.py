"""Views of a model: sublayers left out, weights in fewer bits; the target is unchanged."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
import tiny_models
from foreword.errors import InvalidRequest
from foreword.model import Model, Read
from foreword.model.executors.native.build import build
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.skip import LayerSkip
from foreword.model.view import CODINGS, view
from foreword.native import forward
from grids import NEEDS_C
from running import prompts, target

SOME = LayerSkip(frozenset({1}), frozenset({0}))


def text(length: int = 60) -> list[int]:
    return [token for prompt in prompts() for token in prompt][:length]


def bytes_read(codes: torch.Tensor, outputs: int, depth: int) -> torch.Tensor:
    """The weights that codes of 8 bits stand for: the definition of int8.c."""
    weight = torch.zeros(outputs, depth)
    for start in range(0, outputs, 32):
        wide = min(32, outputs - start)
        panel = codes[start * (depth + 4) :][: wide * (depth + 4)]
        scales = panel[: 4 * wide].view(torch.float32)
        numbers = panel[4 * wide :].view(torch.int8)
        rows = numbers.view(depth // 4, wide, 4).transpose(0, 1).reshape(wide, depth)
        weight[start : start + wide] = rows.float() * scales[:, None]
    return weight


def decoded(codes: torch.Tensor, outputs: int, depth: int, bits: int) -> torch.Tensor:
    """The weights that codes stand for: the definition of the layout in groups.c."""
    if bits == 8:
        return bytes_read(codes, outputs, depth)
    header = forward.Grouped.from_buffer_copy(codes[:128].numpy().tobytes())
    levels, groups = torch.tensor(list(header.level)), depth // header.group
    weight = torch.zeros(outputs, depth)
    strips = codes[128:].reshape(outputs // 16, groups, -1)
    scales = strips[..., :32].contiguous().view(torch.bfloat16).float()
    # strip, group, load of 8 depths, output, byte
    numbers = strips[..., 32:].reshape(len(strips), groups, -1, 16, 4).int()
    for k in range(depth):
        group, place = divmod(k, header.group)
        byte = numbers[:, group, place // 8, :, place % 4]
        code = byte >> (4 * (place % 8 // 4)) & 15
        weight[:, k] = (levels[code] * scales[:, group]).flatten()
    return weight


@NEEDS_C
@pytest.mark.parametrize(
    ("bits", "step", "depth"), [(8, 1 / 127, 160), (4, 0.31, 160), (4, 0.31, 192)]
)
def test_a_code_stands_for_the_nearest_weight_it_can(bits, step, depth):
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(48, depth, generator=noise).bfloat16()
    weight[3, 64:128] = 0
    library = forward.library()
    packed = torch.empty_like(weight)
    library.foreword_pack(weight.data_ptr(), packed.data_ptr(), 48, depth)
    size = library.foreword_coded_bytes(48, depth, CODINGS[bits])
    codes = torch.zeros(size, dtype=torch.uint8)
    group = {8: depth, 4: 64 if depth % 64 == 0 else 32}[bits]
    # scales, and a header
    extra = 48 * depth // group * 2 + 128 if bits == 4 else 48 * 4
    assert codes.numel() == 48 * depth * bits // 8 + extra
    pointers = packed.data_ptr(), codes.data_ptr()
    library.foreword_quantize(*pointers, 48, depth, CODINGS[bits])
    read = decoded(codes, 48, depth, bits)
    found, wanted = (one.reshape(48, -1, group) for one in (read, weight.float()))
    most = wanted.abs().amax(-1, keepdim=True)
    # Half a step of the grid, or the fifth by which the largest weights may be cut.
    limits = torch.where(wanted.abs() > 0.75 * most, 0.22, step / 2 + 0.01) * most
    assert bool(((found - wanted).abs() <= limits).all())
    assert not read[3, 64:128].any()
    assert (found - wanted).pow(2).mean().sqrt() < {8: 0.012, 4: 0.1}[bits]


ODD = "a vocabulary of odd size"


KINDS = "family llama-gqa mistral qwen2 qwen3 gemma2 olmo2 qwen2-moe phi"


@pytest.fixture(scope="module", params=[*KINDS.split(), ODD])
def base(request):
    return build(built(request.param).to(torch.bfloat16).eval())


def built(name):
    if name == "family":
        return AutoModelForCausalLM.from_pretrained(starter.target())
    return tiny_models.extended("llama-gqa") if name == ODD else tiny_models.build(name)


@NEEDS_C
@pytest.mark.parametrize("bits", [4, 8])
def test_bits_of_a_row_do_not_depend_on_the_batch(base, bits):
    backend = base.twin(base.empty_pool(), CODINGS[bits])
    backend.skip(SOME.attention, SOME.mlp)
    backend.open(1, 100)
    backend.open(2, 100)
    noise = torch.Generator().manual_seed(1)
    tokens = torch.randint(backend.model.vocab, (60,), generator=noise).tolist()
    backend.read([Read(1, 0, tokens[:20], keep=0)])
    steps = [Read(1, place, [tokens[place]]) for place in range(20, 37)]
    alone = torch.cat([backend.read([step]) for step in steps])
    for rows in (2, 3, 4, 5, 6, 7, 12, 13, 17):
        together = backend.read([Read(1, 20, tokens[20 : 20 + rows], keep=rows)])
        assert torch.equal(together, alone[:rows]), f"{rows} rows"
    other = Read(2, 0, tokens[3:40], keep=1)
    both = backend.read([other, Read(1, 20, tokens[20:22], keep=2)])
    assert torch.equal(both[1:], alone[:2])


@NEEDS_C
@pytest.mark.parametrize("bits", [4, 8])
def test_product_is_that_of_the_decoded_weights(bits):
    """The head alone: every half of every layer is left out."""
    model, tokens = target("bfloat16"), text(9)
    layers = range(model.hf.config.num_hidden_layers)
    made = view(model, skip=LayerSkip(frozenset(layers), frozenset(layers)), bits=bits)
    made.open(1, 64)
    found = made.read([Read(1, 0, tokens, keep=9)])
    codes, config = made.backend.executor.matrices.held[-1], model.hf.config
    head = decoded(codes, model.vocab, config.hidden_size, bits)
    x = model.embed(torch.tensor(tokens)).float()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
    x = (x * model.hf.model.norm.weight.detach().float()).bfloat16().float()
    wanted = x @ head.T
    most = {8: 3e-4, 4: 2e-3}[bits]
    assert (found - wanted).pow(2).mean().sqrt() < most * wanted.std()


@NEEDS_C
@pytest.mark.parametrize(
    "name", ["family", "phi3", "gemma3", "smollm3", "granite", ODD]
)
def test_scores_in_fewer_bits_are_near(name):
    """Random weights are larger, and what they say is further off."""
    limits = (0.05, 0.35) if name == "family" else (0.15, 0.8)
    tokens = [token % tiny_models.VOCAB for token in text()]
    model = Model(built(name).to(torch.bfloat16))
    model.open(-5, 100)
    truth = model.read([Read(-5, 0, tokens, keep=60)])
    model.close(-5)
    errors = []
    for bits in (16, 8, 4):
        made = view(model, bits=bits)
        made.open(1, 100)
        difference = made.read([Read(1, 0, tokens, keep=60)]) - truth
        errors.append(float(difference.pow(2).mean().sqrt() / truth.std()))
    assert errors[0] == 0
    assert 0 < errors[1] < limits[0]
    assert errors[1] < errors[2] < limits[1]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=NEEDS_C)])
def test_halves_that_are_left_out_add_nothing(dtype):
    model = target(dtype)
    layers = range(model.hf.config.num_hidden_layers)
    made = view(model, skip=LayerSkip(frozenset(layers), frozenset(layers)))
    made.open(1, 64)
    found = made.read([Read(1, 0, text(9), keep=9)])
    # the family ties it to its head
    embedding = model.embed(torch.arange(model.vocab)).detach().float()
    with torch.inference_mode():
        wanted = model.hf.model.norm(embedding[text(9)]).float() @ embedding.T
    most = 0.02 * float(wanted.std())
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=most)


@NEEDS_C
def test_both_kinds_of_view_leave_out_the_same():
    made = [view(target(dtype), skip=SOME) for dtype in ("float32", "bfloat16")]
    in_c = [isinstance(one.backend.executor, NativeExecutor) for one in made]
    assert in_c == [False, True]
    said = []
    for one in made:
        one.open(1, 100)
        said.append(one.read([Read(1, 0, text(), keep=60)]))
    whole = target("float32")
    whole.open(-5, 100)
    apart = (said[0] - whole.read([Read(-5, 0, text(), keep=60)])).std()
    whole.close(-5)
    assert (said[0] - said[1]).std() < 0.1 * apart


@NEEDS_C
@pytest.mark.parametrize(
    "skip",
    [LayerSkip(frozenset({0}), frozenset()), LayerSkip(frozenset(), frozenset({0}))],
)
def test_parallel_layer_can_skip_either_half(skip):
    said = []
    for dtype, backend in ((torch.float32, "pool"), (torch.bfloat16, "native")):
        model = Model(tiny_models.build("phi").to(dtype), backend=backend)
        made = view(model, skip=skip)
        made.open(1, 100)
        said.append(made.read([Read(1, 0, list(range(50)), keep=50)]))
    assert (said[0] - said[1]).std() < 0.05 * said[0].std()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=NEEDS_C)])
def test_target_ignores_what_is_written_after_its_text(dtype):
    """Nor that the pool grows under both."""
    model, tokens = target(dtype), text()
    made = view(model, skip=SOME, spare=64)
    model.open(-5, 100)
    model.open(-6, 100)
    try:
        for name in (-5, -6):
            model.read([Read(name, 0, tokens[:40], keep=0)])
        made.read([Read(-5, 40, [7, 8, 9, 7], [-1, 0, 0], keep=4)])
        model.open(-7, 5000)
        # beyond the 100: that is what the spare is for
        made.read([Read(-5, 40, tokens[40:60] + [5] * 70, keep=1)])
        after = [
            model.read([Read(name, 40, tokens[40:60], keep=20)]) for name in (-5, -6)
        ]
        assert torch.equal(*after)
    finally:
        for name in (-5, -6, -7):
            model.close(name)


@NEEDS_C
def test_a_view_that_shares_needs_no_reading_of_its_own():
    model, tokens = target("bfloat16"), text()
    model.open(-5, 100)
    model.read([Read(-5, 0, tokens[:40], keep=0)])
    wanted = model.read([Read(-5, 40, tokens[40:42], keep=2)])
    made = view(model, spare=64)
    assert torch.equal(made.read([Read(-5, 40, tokens[40:42], keep=2)]), wanted)
    ids = torch.tensor(tokens)
    assert torch.equal(made.embed(ids), model.embed(ids))
    model.close(-5)


def test_layer_gets_its_own_forward_back():
    model = target("float32")
    attention = model.hf.model.layers[1].self_attn
    own = attention.forward
    attention.forward = own
    try:
        made = view(model, skip=SOME)
        made.open(1, 64)
        made.read([Read(1, 0, text(9))])
        assert vars(attention)["forward"] is own
    finally:
        del attention.forward
    made.read([Read(1, 0, text(9))])
    assert "forward" not in vars(attention)


def test_what_cannot_be_viewed_is_refused():
    model = target("float32")
    with pytest.raises(InvalidRequest, match="only backend 'native' can"):
        view(model, bits=8)
    with pytest.raises(InvalidRequest, match="than 0 to 7 of"):
        view(model, skip=LayerSkip(frozenset({8})))
    strange = Model(tiny_models.build("gpt2"))
    with pytest.raises(InvalidRequest, match="no list of layers"):
        view(strange, skip=SOME)


@pytest.mark.filterwarnings("ignore:.*runs in mode")
def test_model_that_cannot_skip_is_refused():
    with pytest.raises(InvalidRequest, match=r"sublayers of .*: only .*not pool: "):
        view(Model(tiny_models.build("bloom")), skip=LayerSkip())
