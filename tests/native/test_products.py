"""Products in C beside torch's, for every way in which rows and outputs are cut."""

from itertools import product
from pathlib import Path

import pytest
import torch

from foreword.model.executors.native.layout import room
from foreword.model.executors.native.unpack import unpacked
from foreword.native import forward
from foreword.native.huge_pages import BLOCK, LARGE, Pages
from foreword.native.workspace import Workspace, multiplied
from grids import NEEDS_C

DEPTHS = [48, 64, 96]
"""In AMX registers: too uneven for them, two steps, three."""
OUTPUTS = [16, 32, 48, 80, 64 * 13 + 16, 7, 35, 53]
"""Half a panel, whole ones, one and a half, and so on; the fifth makes several chunks
for every thread; the last three leave some of their last panel empty."""
ROWS = [1, 2, 11, 12, 13, 16, 17, 24, 25, 32, 33, 40, 70]
"""At most 12 rows are one pass, or 32 in two blocks of 16."""


def packed(weight: torch.Tensor) -> torch.Tensor:
    found = torch.full(
        (room(len(weight)), weight.shape[1]), torch.nan, dtype=weight.dtype
    )
    forward.needed().foreword_pack(weight.data_ptr(), found.data_ptr(), *weight.shape)
    return found


def random(*shape: int) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape))
    ).bfloat16()


@NEEDS_C
def test_packed_weights_are_unpacked():
    for outputs in OUTPUTS:
        weight = random(outputs, 96)
        found = unpacked(packed(weight))
        assert torch.equal(found[:outputs], weight), outputs
        assert len(found) == room(outputs), outputs
        assert not found[outputs:].any(), outputs


PAIRWISE = {
    (outputs, DEPTHS[(row + column) % 3], 1 + column)
    for row, outputs in enumerate(OUTPUTS)
    for column in range(3)
}
"""A Latin square: each pair occurs; `make test-all` runs the other triples."""


@NEEDS_C
@pytest.mark.parametrize(
    ("outputs", "depth", "threads"),
    [
        pytest.param(*case, marks=[] if case in PAIRWISE else pytest.mark.slow)
        for case in product(OUTPUTS, DEPTHS, (1, 2, 3))
    ],
)
@pytest.mark.usefixtures("registers")
def test_product_is_that_of_torch_whatever_rows_are_beside_it(outputs, depth, threads):
    weight, given = random(outputs, depth), random(max(ROWS), depth).float()
    held = packed(weight)
    lm_head = forward.Model(hidden=depth, vocab=outputs, head=held.data_ptr())
    scratch = Workspace(lm_head)
    alone = torch.cat(
        [multiplied(forward.needed(), lm_head, scratch, row[None], 1) for row in given]
    )
    torch.testing.assert_close(alone, given @ weight.float().T, rtol=1e-4, atol=1e-4)
    for rows in ROWS:
        assert torch.equal(
            multiplied(forward.needed(), lm_head, scratch, given[:rows], threads),
            alone[:rows],
        )


@NEEDS_C
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("registers")
def test_many_rows_are_multiplied_in_bands(threads):
    """A band is 32 of these rows; a chunk is two panels."""
    weight, given = random(32 * 5 + 16, 8192), random(70, 8192).float()
    held = packed(weight)
    lm_head = forward.Model(hidden=8192, vocab=len(weight), head=held.data_ptr())
    scratch = Workspace(lm_head)
    few = torch.cat(
        [
            multiplied(forward.needed(), lm_head, scratch, given[i : i + 10], 1)
            for i in range(0, 70, 10)
        ]
    )
    torch.testing.assert_close(few, given @ weight.float().T, rtol=1e-3, atol=1e-3)
    assert torch.equal(
        multiplied(forward.needed(), lm_head, scratch, given, threads), few
    )


def test_tensors_in_large_pages_do_not_overlap():
    pages = Pages()
    wanted = [
        torch.empty(shape, dtype=dtype)
        for shape in ((3, 5), (7,), (129, 2))
        for dtype in (torch.int64, torch.bfloat16)
    ]
    found = [pages.empty(tensor.shape, tensor.dtype) for tensor in wanted]
    for number, tensor in enumerate(found):
        tensor.fill_(number)
    for number, (tensor, like) in enumerate(zip(found, wanted, strict=True)):
        assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype)
        assert tensor.data_ptr() % 64 == 0
        assert tensor.is_contiguous()
        assert bool((tensor == number).all())
    assert found[0].data_ptr() % LARGE == 0


def test_large_tensor_has_a_block_of_its_own():
    pages = Pages()
    small = pages.empty((8,), torch.uint8).fill_(1)
    large = pages.empty((BLOCK + 1,), torch.uint8)
    assert large.data_ptr() % LARGE == 0
    large[-1] = 7
    assert (int(large[-1]), int(small.sum())) == (7, 8)


def test_memory_is_in_large_pages():
    offered = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not offered.exists() or "[never]" in offered.read_text():
        pytest.skip("there are no large pages here")
    held = Pages().empty((4 * LARGE,), torch.uint8).fill_(1)
    advised, within = False, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            within = low <= held.data_ptr() < high
        elif within and first == "VmFlags:":
            advised = "hg" in rest
    assert advised
