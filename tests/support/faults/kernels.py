"""Faults of kernels: the C code is compiled with one place changed, or a forward's
logits are.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp

import pytest
import torch

from faults.fault import Fault, Plant
from foreword.native import compiler, forward, layout
from foreword.native.compiler import SOURCES, compiled

FINAL_NORM = "norm_row(m, f, m->norm, m->norm_bias, r, to);"
LAYER_NORM = "else rms_norm(x, weight, m->eps, m->hidden, to);"
CAUSAL = "span->stop - span->start : local + 1)"
TAIL = "query->prefix + node;\n"
SCALE = "scales_of(m, codes_at(old, layer->keys), head)[from];"


@cache
def changed(file: str, old: str, new: str) -> forward.ctypes.CDLL:
    """Return the library, compiled with one place changed."""
    folder = Path(mkdtemp(prefix="foreword-fault-")) / "csrc"
    copytree(SOURCES, folder)
    source = folder / file
    text = source.read_text()
    assert text.count(old) == 1, f"{file} has changed: {old}"
    source.write_text(text.replace(old, new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREWORD_CFLAGS", "-O1")
        patch.setattr(compiler, "SECONDS", 600)
        library = compiled(folder / "foreword.c")
    assert not isinstance(library, str), library
    layout.declare(library, forward._FUNCTIONS)
    library.foreword_use_amx(1)
    return library


def in_c(file: str, old: str, new: str) -> Plant:
    def plant(patch, llm):
        library = changed(file, old, new)
        patch.setattr(llm.target.backend, "library", library)

    return plant


def of_logits(change: Callable) -> Plant:
    """Plant other logits of the target's forwards."""

    def plant(patch, llm):
        exact = llm.target.backend.read

        def read(reads):
            logits = exact(reads)
            change(logits)
            return logits

        patch.setattr(llm.target.backend, "read", read)

    return plant


def other_scale(logits):
    if len(logits) > 4:
        logits[3] *= logits[2].norm() / logits[3].norm()


def no_last_token(logits):
    logits[1:, -1] = -torch.inf


KERNEL_FAULTS: dict[str, Fault] = {
    "a row scaled as the row before": Fault(of_logits(other_scale), quick=True),
    "the last column of hidden states skipped from the fifth row on": Fault(
        in_c(
            "layers/rows.c",
            FINAL_NORM,
            f"{FINAL_NORM}\n    if (r >= 4) to[m->hidden - 1] = 0;",
        )
    ),
    "a sum in another order in forwards of more than four rows": Fault(
        in_c(
            "layers/rows.c",
            LAYER_NORM,
            "else if (f->rows <= 4 || !weight) rms_norm(x, weight, m->eps, m->hidden, "
            "to);\n    else {\n        float sum = 0;\n"
            "        for (int64_t i = m->hidden - 1; i >= 0; i--) sum += x[i] * x[i];\n"
            "        const floats size = all(1.0f / sqrtf(sum / (float)m->hidden + "
            "m->eps));\n"
            "        for (int64_t i = 0; i < m->hidden; i += LANES)\n"
            "            store_factors(to + i, mul(mul(load(x + i), size), "
            "load(weight + i)));\n    }",
        )
    ),
    "one key too few in reads of 5 to 16 rows": Fault(
        in_c(
            "attention/attention.c",
            CAUSAL,
            "span->stop - span->start : local + 1 - (local > 0 && "
            "span->stop - span->start > 4 && span->stop - span->start < 17))",
        ),
        methods=("predicted",),
    ),
    "a draft token's own key missed at a new page": Fault(
        in_c(
            "attention/attention.c",
            TAIL,
            "query->prefix + node - (query->prefix + node == PAGE);\n",
        )
    ),
    "the scale of int8 keys not moved with them": Fault(
        in_c(
            "attention/kv.c",
            SCALE,
            "scales_of(m, codes_at(old, layer->keys), head)[from ? from - 1 : 0];",
        )
    ),
    "the last token id impossible after draft tokens": Fault(of_logits(no_last_token)),
}
