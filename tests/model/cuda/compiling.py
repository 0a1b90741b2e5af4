"""Compiles the kernels for a GPU elsewhere: python compiling.py 90 bfloat16 64"""

import sys

import torch
import triton
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from foreword.model.executors.cuda import (
    fused,
    fused_kernels,
    kernels,
    launch,
    quantized,
)
from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.formats import floats
from foreword.native import forward, noise_kernel

NAMES = {
    kernels: ("partial_sums", "joined_sums"),
    fused_kernels: ("rms_norm", "rotate", "weight_only"),
    noise_kernel: ("_noise",),
}
KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16"}
KINDS |= {torch.float16: "fp16", torch.int32: "i32"}
KINDS |= {torch.int8: "i8", torch.uint8: "u8", torch.int64: "i64"}


class Compiled:
    """Stands where a kernel stood, and compiles it for what it is called with."""

    def __init__(self, kernel, capability: int) -> None:
        self.kernel, self.target = kernel, GPUTarget("cuda", capability, 32)

    def __getitem__(self, grid):
        return self

    def __call__(self, *given, **constants) -> None:
        types = dict(zip(self.kernel.arg_names, map(kind, given), strict=False))
        constants |= {name: None for name, held in types.items() if held == "constexpr"}
        made = triton.compile(
            ASTSource(
                self.kernel,
                types | dict.fromkeys(constants, "constexpr"),
                constexprs=constants,
            ),
            target=self.target,
        )
        assert made.asm["cubin"]
        sys.stdout.write(
            f"{self.kernel.__name__}: {made.metadata.shared} bytes of shared memory\n"
        )


def kind(argument) -> str:
    if isinstance(argument, torch.Tensor):
        return f"*{KINDS[argument.dtype]}"
    if argument is None:
        return "constexpr"
    return "fp32" if isinstance(argument, float) else "i32"


def main(capability: str, dtype: str, dim: str, *extras: str) -> None:
    for module, names in NAMES.items():
        for name in names:
            setattr(module, name, Compiled(getattr(module, name), int(capability)))
    query, pool = torch.zeros(2, 8, int(dim)), torch.zeros(64, 2, int(dim))
    given = [tensor.to(getattr(torch, dtype)) for tensor in (query, pool, pool)]
    more = (5, 2.0, given[0][0, :, 0]) if extras else ()
    extra = launch.Scoring(0.1, *more)
    launch.attend(*given, torch.zeros(2, 17, dtype=torch.int32), extra, (9, 2, 16))
    rows = given[0]
    fused.rms_norm(rows, rows[0, 0], 1e-6, rows if extras else None)
    heads = rows.transpose(0, 1)[None]
    fused.rotated(heads, heads[:, :2], rows[None, :, 0], rows[None, :, 0])
    linear = nn.Linear(128, 40, bias=bool(extras), dtype=rows.dtype)
    codings = forward.BYTES, forward.GROUPS
    matrices = [quantized._rounded(coding, linear) for coding in codings]
    codes = torch.zeros(40, 128, dtype=torch.uint8)
    scales = Scales(torch.ones(40, 1), torch.ones(40, 8, dtype=torch.int16))
    table = torch.arange(16, dtype=torch.int8) ** 2 // 2
    matrices.append(Coded(codes, table, scales, scales, 16))
    matrices.append(Coded(codes, torch.arange(64).to(torch.int8), scales, None, 16))
    matrices.append(Coded(codes, floats.LEVELS, Scales(scales.values), None, 128))
    for matrix in matrices:
        quantized.QuantizedLinear(linear, matrix)(rows.new_zeros(3, 128))
    noise_kernel.gumbel_of_words(torch.zeros(4, 2, dtype=torch.int64), 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
