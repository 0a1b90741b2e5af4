"""The same C on several kinds of processors, run here: each operation against torch,
and a forward against our own. Others than this machine's need a cross compiler and an
emulator.
"""

import hashlib
import platform
import shutil
import subprocess
from ctypes import CDLL, c_float
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from foreword.native import compiler
from foreword.native.cpu import cpuinfo
from grids import slow_case

PROGRAM = Path(__file__).with_name("simd.c")
PROMISED = Path(__file__).with_name("bits.c")
LANES, LOGITS = 16, 40 * 112
OPERATIONS, NUMBERS = 35, 3
"""The program's output for each 16 times three numbers: vectors, then numbers."""
FIRST = (-0.1802, 0.0192, 0.4362, -0.9732, 0.7403, -0.2961, 0.8087, -1.4089)
"""Logits, as an ARM computed them in an emulator and a Xeon with AVX2 to the same bits."""
PRODUCT, GROUPED = "85b9b33adaa482b2", "2ee4fbbfa3b69623"
"""Beginnings of the hashes of products in 8 bits and groups, equal on all."""


@dataclass(frozen=True)
class Kind:
    """A kind of processor, and what compiles and runs for it."""

    name: str
    flags: tuple[str, ...]
    hidden_layers: str = ""
    """Features that the processor must have, as the system names them."""
    command: tuple[str, ...] = ("cc",)
    emulator: tuple[str, ...] = ()

    def refused(self) -> str | None:
        for tool in (*self.command, *self.emulator):
            if shutil.which(tool) is None:
                return f"there is no {tool}"
        if self.emulator or self.flags == (compiler.NATIVE,):
            return None
        lines = [line for line in cpuinfo() if line.startswith("flags")]
        flags = {word for line in lines[:1] for word in line.split()}
        needed = {*self.hidden_layers.split()}
        if platform.machine() != "x86_64" or not needed <= flags:
            return f"the processor lacks {self.hidden_layers or 'x86-64'}"
        return None


WITHOUT_AMX = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
AVX512 = "avx512f avx512bw avx512vl avx512dq avx512cd"
AVX2 = Kind("avx2", ("-march=x86-64-v3",), "avx2 fma")
CLANG = dict(command=("clang",))
AVX2_BY_CLANG = Kind("avx2, by clang", ("-march=x86-64-v3",), "avx2 fma", **CLANG)
SSE = Kind("sse", ("-march=x86-64",))
SSE_BY_CLANG = Kind("sse, by clang", ("-march=x86-64",), **CLANG)
BFLOAT16 = ("-march=native", *WITHOUT_AMX)
ARM = dict(command=("aarch64-linux-gnu-gcc",), emulator=("qemu-aarch64-static",))
OTHERS = (
    Kind("avx512 with bfloat16", BFLOAT16, f"{AVX512} avx512_bf16"),
    Kind("avx512", ("-march=x86-64-v4",), AVX512),
    SSE,
    Kind("arm", ("-static",), **ARM),
)
USUAL = AVX2_BY_CLANG if AVX2_BY_CLANG.refused() is None else AVX2


def slowly(usual, kinds):
    """Return the usual kinds, and the others of `kinds` for `make test-all` alone."""
    others = [kind for kind in kinds if kind not in usual]
    return usual + [slow_case(kind) for kind in others]


KINDS = slowly([USUAL], (AVX2, AVX2_BY_CLANG, *OTHERS))
"""Half a minute to compile the whole forward for them all; clang takes less than gcc."""
ALWAYS = [
    Kind("this processor", (compiler.NATIVE,)),
    USUAL,
    SSE_BY_CLANG if SSE_BY_CLANG.refused() is None else SSE,
    Kind(
        "emulated matrices",
        ("-march=cooperlake", "-DEMULATED"),
        f"{AVX512} avx512_bf16",
    ),
]
VNNI = ("-march=x86-64-v3", "-mavxvnni")
OFTEN = [
    Kind("this processor, by clang", (compiler.NATIVE,), **CLANG),
    AVX2,
    AVX2_BY_CLANG,
    Kind("avx2 with products of bytes", VNNI, "avx2 fma avx_vnni"),
    *OTHERS,
    SSE_BY_CLANG,
]
EVERY_KIND = slowly(ALWAYS, OFTEN)
"""A second or two each, of a few parts of the forward. Both compilers and each width of
vectors are always tried, other pairs by `make test-all`.
"""
EQUAL = {
    "noise": "f08f59bfa12aa35c",
    "noise of the word nearest to a tie": "1d98802af3873813",
    "bounds of the noise that do not hold": "4d25767f9dce13f5",
    "draws": "d27bae90decf848b",
    "weights in 8 bits": "f8f9659d22f87503",
    "products in 8 bits": "107c6933e764c041",
    "weights in 4 bits": "c82322c664c11c93",
    "products in 4 bits": "96f63bf075c8ce43",
    "products in 4 bits, scales in bfloat16": "6d01de3bc92d91ee",
    "products in 8 bits, scales in float16": "714d3aef7ca1e6d4",
    "products in 6 bits, scales in float16": "1d8bd4a1840607d8",
    "products in 4 bits, scales and offsets in float32": "49e22640ace3e560",
    "products in 4 bits, scales of two levels": "4b86a8f2c821a511",
    "products in 4 bits, zero points": "a2b10089f13b1653",
    "products in 4 bits, spans in whole numbers": "a1e054edb9381ee9",
    "products in 5 bits, spans in whole numbers": "177219ead4538bf8",
    "products in 6 bits, spans in whole numbers": "70c910f8d4129bdd",
    "products in small groups, spans in whole numbers": "84a12189b1a7a176",
    "keys and values in 8 bits": "be61da5b9ef465b0",
    "keys and values read from 8 bits": "7a692c3d7c008d5f",
    "exponentials": "dcc3eefadba4b381",
    "rotations": "52a4a63a2230dfb0",
}
"""Hashes of what has the same bits on every processor and compiler (bits.c)."""
OF_FUSED = {"exponentials", "rotations"}
"""Those that round once more without fusion; attention has both."""


def given() -> Tensor:
    """Blocks of three times 16 numbers: common ones, between two, and hardly any."""
    generator = torch.Generator().manual_seed(1)
    common = torch.rand(6, 3, LANES, generator=generator) * 160 - 80
    high = torch.randint(0x3F80, 0x4180, (2, 3, LANES), generator=generator)
    between = ((high << 16) + 0x8000).to(torch.int32)
    infinite, large = float("inf"), 3.4e38
    rare = [0.0, -0.0, infinite, -infinite, large, -large, 1e30, 1.0]
    odd = torch.tensor(rare * 6).view(1, 3, LANES)
    odd[0, 0, 3], odd[0, 1] = float("nan"), 1.0
    return torch.cat([common, between.view(torch.float32), odd])


def output(kind: Kind, made: Path, numbers: bytes = b"") -> bytes:
    """A program's output."""
    return subprocess.check_output([*kind.emulator, made], input=numbers, timeout=120)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def results(request, compile_once):
    """What the program prints for each block, forwards and a product."""
    kind: Kind = request.param
    if why := kind.refused():
        pytest.skip(why)
    made = compile_once(PROGRAM, *kind.command, *kind.flags)
    written = output(kind, made, given().numpy().tobytes())
    found = torch.frombuffer(bytearray(written), dtype=torch.float32)
    blocks, size = len(given()), OPERATIONS * LANES + NUMBERS
    each = found[: blocks * size].view(blocks, size)
    shape = (OPERATIONS, LANES)
    vectors = [(block[:-NUMBERS].view(shape), block[-NUMBERS:]) for block in each]
    logits = found[blocks * size :]
    return vectors, logits[: 6 * LOGITS].view(3, 2, LOGITS), logits[6 * LOGITS :]


def bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def test_operations_are_those_of_torch(results):
    spread = torch.tensor([(7 * i + 3) % LANES for i in range(LANES)])
    for (x, y, z), (found, numbers) in zip(given()[:8], results[0], strict=False):
        low, high = bfloat16(torch.cat([x, y])).view(-1, 2).T
        exact = dict(enumerate([x + y, x - y, x * y, x / y]))
        exact |= {5: torch.maximum(x, y), 6: torch.minimum(x, y), 7: x.round()}
        exact |= {11: bfloat16(x), 12: torch.where(x > y, z, 0), 13: x[spread]}
        exact |= {14: x[0].expand(LANES), 15: low, 16: high, 17: bfloat16(z)}
        for place, expected in exact.items():
            assert torch.equal(expected, found[place]), place
        assert_close(found[4], (x.double() * y + z).float(), rtol=2e-6, atol=1e-3)
        scaled = torch.ldexp(x, y.round().clamp(-126, 127).int())
        assert_close(found[8], scaled, rtol=0, atol=0)
        assert_close(found[9], x.exp(), rtol=5e-7, atol=1e-37)
        assert_close(found[10], x.sigmoid(), rtol=1e-6, atol=1e-37)
        factors = bfloat16(z)
        summed = x + low * factors[0] + high * factors[1]
        assert_close(found[18], summed, rtol=1e-5, atol=1e-3)
        assert_close(numbers[0], x.sum(), rtol=1e-5, atol=1e-4)
        assert numbers[1] == x.max()
        larger = [1 << lane for lane in range(LANES) if x[lane] > y[lane]]
        assert int(numbers[2]) == sum(larger)


def test_fused_operations_round_once(results):
    """C's own do so too, in hardware or not."""
    fmaf = CDLL(find_library("m")).fmaf
    fmaf.argtypes, fmaf.restype = (c_float,) * 3, c_float
    for (x, y, z), (found, _) in zip(given()[:8], results[0], strict=False):
        assert_close(found[30], (z - x.double() * y).float(), rtol=2e-6, atol=1e-3)
        once = [*map(fmaf, x.tolist(), y.tolist(), z.tolist())]
        assert found[31].tolist() == once


def test_every_other_place_is_written_and_no_place_between(results):
    for (x, y, z), (found, _) in zip(given()[:8], results[0], strict=False):
        assert torch.equal(found[19], bfloat16(torch.cat([x, y]))[::2])
        assert torch.equal(found[20], bfloat16(z))
        pair = bfloat16(torch.cat([x, y]))
        assert torch.equal(found[33], pair[::2])
        assert torch.equal(found[34], pair[1::2])


def test_bytes_are_looked_up_multiplied_and_summed_exactly(results):
    """A load of 64 bytes is 16 outputs by 4 depths."""
    held = torch.tensor([(i * 77 + 13) % 256 for i in range(4 * LANES)])
    for (x, _, _), (found, _) in zip(given()[:6], results[0], strict=False):
        levels = x.round().clamp(-127, 127).long()
        four = levels[4:8]
        signed = held - 256 * (held > 127)
        ways = (levels[held & 15], levels[held >> 4], signed)
        for place, level in enumerate(ways, 21):
            products = level.view(LANES, 4) * four
            assert torch.equal(found[place], products.sum(1).float())
        assert torch.equal(found[24], signed[:LANES].float())
        moved = held >> 4 | (held << 4) & 0x30
        assert torch.equal(found[32], (moved.view(LANES, 4) * four).sum(1).float())
        half = x.view(torch.float16)[:LANES].float()
        assert torch.equal(found[25][half.isfinite()], half[half.isfinite()])


def test_bytes_times_words_are_summed_exactly(results):
    """Words are in the order 0 2 1 3 of the bytes that they multiply."""
    held = torch.tensor([(i * 77 + 13) % 256 for i in range(4 * LANES)])
    signed = (held - 256 * (held > 127)).view(LANES, 4)
    for (x, _, _), (found, _) in zip(given()[:6], results[0], strict=False):
        words = x.round().long()
        sums = (signed * words[[0, 2, 1, 3]]).sum(-1) + 5
        assert torch.equal(found[26], sums.float())
        assert torch.equal(found[27], (2 * sums).float())
        assert torch.equal(found[29], x[3:5].repeat(LANES // 2))


def test_products_of_small_levels_are_summed_exactly(results):
    held = torch.tensor([(i * 77 + 13) % 256 for i in range(4 * LANES)])
    low, high = 4 * (held & 15).view(LANES, 4), 4 * (held >> 4).view(LANES, 4)
    for (x, _, _), (found, _) in zip(given()[:6], results[0], strict=False):
        four = x.round().clamp(-127, 127).long()
        expected = (low * four[4:8]).sum(-1) + (high * four[:4]).sum(-1)
        assert torch.equal(found[28], expected.float())
        assert found[28].any()
        assert torch.equal(found[29], x[3:5].repeat(LANES // 2))


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.name)
def test_bits_are_equal_on_every_processor(kind, compile_once):
    """Exact halves are included: fused, a product and a sum round to the other side."""
    if why := kind.refused():
        pytest.skip(why)
    made = compile_once(PROMISED, *kind.command, *kind.flags)
    lines = output(kind, made).decode().splitlines()
    found = dict(line.split(": ") for line in lines)
    unpromised = OF_FUSED if "-march=x86-64" in kind.flags else set()
    assert found.keys() == EQUAL.keys()
    wrong = {name for name, bits in found.items() if EQUAL[name] != bits}
    assert wrong <= unpromised


def test_products_in_8_bits_have_known_bits(results):
    assert beginning(results[2][: 5 * 48]) == PRODUCT


def test_products_in_groups_have_known_bits(results):
    assert beginning(results[2][5 * 48 :]) == GROUPED


def beginning(numbers: Tensor) -> str:
    return hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]


def test_nan_and_infinity_stay_what_they_are(results):
    (x, y, _), (found, _) = given()[-1], results[0][-1]
    assert torch.equal(found[11].isnan(), x.isnan())
    assert torch.equal(found[11].nan_to_num(7), bfloat16(x).nan_to_num(7))
    known = ~x.isnan()
    assert_close(found[10][known], x.sigmoid()[known], rtol=1e-6, atol=1e-37)
    assert torch.equal(found[12], torch.where(x > y, given()[-1][2], 0))


def test_forwards_have_bits_of_their_own_and_known_scores(results):
    """In bfloat16, 8 bits and 4, all rows at once and one by one."""
    _, forwards, _ = results
    assert torch.equal(forwards[:, 0], forwards[:, 1])
    assert forwards.isfinite().all()
    assert forwards[0].std() > 0.1
    assert_close(forwards[1], forwards[0], rtol=0, atol=0.05)
    assert_close(forwards[2], forwards[0], rtol=0, atol=0.5)
    assert_close(forwards[0, 0, :8], torch.tensor(FIRST), rtol=0, atol=0.01)
