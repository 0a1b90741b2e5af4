"""Keys of texts, Gumbel noise, draws and top-k in C (sampling.c), for CPU tensors.

Without a compiler callers use their torch code.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int64, c_uint64
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.native import layout
from foreword.native.compiler import SOURCES, compiled


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None without a compiler."""
    lib = _compiled()
    if isinstance(lib, str):
        return None
    functions = {
        "extend": "upl:u",
        "gumbel": "ppppllp",
        "gumbel_of": "uplp",
        "follow": "ppflpplpp:l",
        "best": "plllpp",
    }
    layout.declare(lib, functions)
    return lib


@cache
def on_gpu() -> Callable[[Tensor, int], Tensor] | None:
    """Return `gumbel_of_words` (noise_kernel.py); None without Triton."""
    try:
        from foreword.native.noise_kernel import gumbel_of_words
    except ImportError:
        return None
    return gumbel_of_words


def reason() -> str | None:
    """Return why there are no compiled functions; None if there are."""
    lib = _compiled()
    return lib if isinstance(lib, str) else None


@cache
def _compiled() -> ctypes.CDLL | str:
    return compiled(SOURCES / "sampling.c")


def _readable(logits: Tensor) -> bool:
    return logits.is_cpu and logits.dtype == torch.float32


def extend(key: int, tokens: Sequence[int]) -> int | None:
    """Return the key after these tokens; None without a compiler."""
    lib = library()
    if lib is None:
        return None
    ids = array("q", tokens)
    return lib.foreword_extend(key, ids.buffer_info()[0], len(ids))


def gumbel(
    keys: Sequence[int],
    depths: Sequence[int],
    streams: Sequence[int],
    rounds: Sequence[int],
    vocab: int,
) -> Float[Tensor, "rows vocab"] | None:
    """Return standard Gumbel noise, a row per (key, depth, stream word, round);
    None without a compiler.
    """
    lib, rows = library(), len(keys)
    if lib is None:
        return None
    noise = torch.empty(rows, vocab, dtype=torch.float32)
    columns = [(c_int64 * rows)(*column) for column in (depths, streams, rounds)]
    keyed = (c_uint64 * rows)(*keys)
    lib.foreword_gumbel(keyed, *columns, rows, vocab, noise.data_ptr())
    return noise


def gumbel_of(key: int, tokens: Sequence[int]) -> list[float] | None:
    """Return the noise of these tokens in a key's row; None without a compiler."""
    lib, count = library(), len(tokens)
    if lib is None:
        return None
    noise = (c_float * count)()
    lib.foreword_gumbel_of(key, (c_int64 * count)(*tokens), count, noise)
    return list(noise)


def follow(
    logits: Float[Tensor, "rows vocab"],
    key: int | None,
    temperature: float,
    tokens: list[int],
    parents: list[int],
) -> tuple[list[int], int] | None:
    """Draw argmax(row / temperature + noise of the key), the first of equals, and
    without a key argmax(row), starting with row 0; after each draw go to the first
    child with that token, and extend the key by it.

    The row of draft token i is i + 1. Returns the accepted draft tokens and the last
    draw; None without a compiler, or if logits are not float32 on a CPU.
    """
    lib, draft_tokens = library(), len(tokens)
    if lib is None or not _readable(logits):
        return None
    logits = logits.contiguous()
    # plus room for the path and the last draw
    numbers = array("q", tokens + parents + [0] * (draft_tokens + 1))
    (first, _), size = numbers.buffer_info(), numbers.itemsize * draft_tokens
    start = None if key is None else byref(c_uint64(key))
    places = (first, first + size, draft_tokens, first + 2 * size, first + 3 * size)
    length = lib.foreword_follow(
        logits.data_ptr(), start, temperature, logits.shape[1], *places
    )
    return list(numbers[2 * draft_tokens : 2 * draft_tokens + length]), numbers[-1]


def best(
    rows: Float[Tensor, "rows vocab"], most: int
) -> tuple[Float[Tensor, "rows most"], Int[Tensor, "rows most"]] | None:
    """Return the `most` largest of each float32 row, best first and the first of equals
    first, and their ids.

    A row with fewer numbers is filled with -inf at id 0. None without a compiler.
    """
    lib, rows = library(), rows.contiguous()
    if lib is None:
        return None
    values = torch.empty(len(rows), most, dtype=torch.float32)
    ids = torch.empty(len(rows), most, dtype=torch.int64)
    lib.foreword_best(
        rows.data_ptr(), *rows.shape, most, values.data_ptr(), ids.data_ptr()
    )
    return values, ids
