"""Packed linear layers: equal to F.linear, and a row's bits its own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from foreword.model.executors.torch import packed_linear
from foreword.native.cpu import fast_bfloat16

DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not fast_bfloat16(), reason="slow bfloat16"),
    ),
]
SIZES = [(384, 1024), (96, 64), (64, 8192), (4096, 1024)]


def layer(
    size: tuple[int, int], dtype: torch.dtype, *, bias: bool = False
) -> nn.Linear:
    return nn.Linear(*size, bias=bias).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_equal_to_the_plain_layer(size, dtype, bias):
    plain = layer(size, dtype, bias=bias)
    x = torch.randn(2, 7, size[0]).to(dtype)
    with torch.inference_mode():
        found = packed_linear.PackedLinear(plain)(x)
        exact = F.linear(x.double(), plain.weight.double())
        exact = exact if plain.bias is None else exact + plain.bias.double()
    assert found.dtype == dtype
    assert found.shape == (2, 7, size[1])
    near = 1e-5 if dtype == torch.float32 else 1e-2
    close = dict(atol=near, rtol=near)
    torch.testing.assert_close(found.double(), exact, **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@torch.inference_mode()
def test_bits_do_not_depend_on_rows_beside(size, dtype):
    packed = packed_linear.PackedLinear(layer(size, dtype))
    x = torch.randn(100, size[0]).to(dtype)
    want = torch.cat(
        [packed(row.expand(packed_linear.MIN_ROWS, -1).contiguous())[:1] for row in x]
    )
    for rows in range(packed_linear.MIN_ROWS, 101):
        assert torch.equal(packed(x[:rows]), want[:rows]), rows
        assert torch.equal(packed(x[100 - rows :]), want[100 - rows :]), rows
    assert torch.equal(packed(x[None, 3:40])[0], want[3:40])


def test_layers_are_swapped_where_they_stand_and_put_back():
    special = nn.Bilinear(4, 4, 4)
    model = nn.Sequential(
        nn.Linear(8, 16),
        nn.Sequential(nn.ReLU(), nn.Linear(16, 4, bias=False)),
        special,
    )
    before = list(model.modules())
    x = torch.randn(3, 8)
    with torch.inference_mode():
        want = model[1](model[0](x))
        swaps = packed_linear.swap_in(model)
        assert [type(swap.parent) for swap in swaps] == [nn.Sequential] * 2
        assert type(model[0]) is type(model[1][1]) is packed_linear.PackedLinear
        assert model[2] is special
        torch.testing.assert_close(model[1](model[0](x)), want)
        assert packed_linear.swap_in(model) == [], "nothing is packed twice"
        assert model[0].weight.dtype == torch.float32
    packed_linear.swap_out(swaps)
    assert list(model.modules()) == before


def test_only_what_onednn_multiplies_is_packed():
    class Other(nn.Linear):
        """A layer of another project, whose forward is not replaced."""

    assert packed_linear.packable(nn.Linear(4, 4))
    assert not packed_linear.packable(Other(4, 4))
    assert not packed_linear.packable(nn.Linear(4, 4).to(torch.float16))
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, given, out: out + 1)
    assert not packed_linear.packable(hooked)
