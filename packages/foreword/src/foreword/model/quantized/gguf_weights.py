"""GGUF weights under the names of transformers: numbers and, where quantized, codes.

Llama.cpp's converter splits, renames and reorders weights. Here each of its changes is
undone, on codes too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.layers import layer_count
from foreword.model.quantized.coded import Coded, Matrix, joined
from foreword.model.quantized.gguf_file import ROPE, GgufFile

EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")
ROTATED_PAIRS = ("llama", "smollm3")
"""Architectures whose queries and keys llama.cpp rotates in pairs of neighbours."""
AROUND_ONE = ("gemma2", "gemma3", "qwen35", "qwen35moe")
"""Architectures whose norms a file holds plus one, but for linear attention."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file holds a weight, and what undoes the changes of the converter."""

    names: tuple[str, ...]
    """Tensors that make up the weight: their outputs are joined in this order."""
    rows: Int[Tensor, "outputs"] | None = None
    """Index in the file of each output; None = the same order."""
    columns: Int[Tensor, "depth"] | None = None
    """Index in the file of each input; None = the same order."""
    number: Callable[[Tensor], Tensor] | None = None
    """Undoes llama.cpp's change of the numbers, which ends their quantized form."""
    transposed: bool = False
    """Whether the model holds a matrix of each expert as [inputs, outputs]."""


def weights(
    file: GgufFile, model: PreTrainedModel, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Matrix]]:
    """Return the weights of a model, which may be without storage, by name: tensors,
    and quantized matrices.

    A weight that the file lacks is left out. Raises ModelError for a tensor that the
    model has no place for.
    """
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    shapes = {
        name: weight.shape
        for name, weight in model.state_dict().items()
        if name not in tied
    }
    places = {name: _place(file, model.config, name) for name in shapes}
    used = chain.from_iterable(place.names for place in places.values())
    _check_used(file, model, set(used))
    held = {
        name: place.names
        for name, place in places.items()
        if file.tensors.keys() >= set(place.names)
    }
    _check_sizes(file, shapes, held)
    tensors: dict[str, Tensor] = {}
    matrices: dict[str, Matrix] = {}
    for name, source in ((name, places[name]) for name in held):
        if matrix := _matrix(file, source, shapes[name]):
            matrices[name] = matrix
        else:
            tensors[name] = _numbers(file, source, shapes[name]).to(dtype)
    return tensors, matrices


def _matrix(
    file: GgufFile,
    source: Place,
    shape: torch.Size,
) -> Matrix | None:
    """Return a weight in quantized form; None where the file does not quantize it, or
    its codes cannot be put in order.
    """
    if source.number is not None or not all(map(file.in_few_bits, source.names)):
        return None

    def read() -> Coded | None:
        parts = [file.coded(name) for name in source.names]
        return _ordered(joined([part for part in parts if part is not None]), source)

    if source.columns is not None and read() is None:
        return None
    part = blocks = None
    if source == Place(source.names[:1]):
        part = partial(_part, file, source.names[0])
        blocks = partial(file.blocks, source.names[0])
    return Matrix(
        lambda: cast(Coded, read()),
        shape,
        partial(_shaped, shape=shape, transposed=source.transposed),
        part=part,
        blocks=blocks,
    )


def _part(file: GgufFile, name: str, rows: slice) -> Coded:
    return cast(Coded, file.coded(name, rows))


def _place(file: GgufFile, config: Any, name: str) -> Place:
    if match := EXPERTS.fullmatch(name):
        return _experts(file, *match.groups())
    theirs = file.names(config.num_hidden_layers).get_name(
        name.replace(".dt_bias", ".dt_proj.bias"), try_suffixes=(".weight", ".bias")
    )
    full = theirs if theirs in file.tensors else f"{theirs}.weight"
    if file.architecture in ROTATED_PAIRS and ("attn_q." in full or "attn_k." in full):
        size = (
            getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads
        )
        return Place(
            (full,),
            rows=halves(
                file.tensors[full].shape[-1] if full in file.tensors else 0, size
            ),
        )
    if ".linear_attn." in name and ".linear_attn.norm." not in name:
        return _linear_attention(full, config, name.rsplit(".linear_attn.", 1)[1])
    if (
        file.architecture in AROUND_ONE
        and "norm" in full
        and ".linear_attn." not in name
    ):
        return Place((full,), number=lambda numbers: numbers - 1)
    return Place((full,))


def _experts(
    file: GgufFile,
    layer: str,
    matrix: str,
    bias: str | None,
) -> Place:
    """Return the place of all experts' matrices or biases; gpt-oss alternates."""
    ending, alternating = "bias" if bias else "weight", file.architecture == "gpt-oss"
    if matrix == "down":
        return Place(
            (f"blk.{layer}.ffn_down_exps.{ending}",),
            transposed=alternating and not bias,
        )
    both = f"blk.{layer}.ffn_gate_up_exps.{ending}"
    if both in file.tensors and not alternating:
        return Place((both,))
    names = tuple(f"blk.{layer}.ffn_{part}_exps.{ending}" for part in ("gate", "up"))
    if names[0] not in file.tensors:
        return Place(names)
    shape = file.tensors[names[0]].shape[::-1]
    each = torch.arange(2 * shape[0] * shape[1]).view(2, *shape[:2])
    rows = each.permute(1, 2, 0) if alternating else each.transpose(0, 1)
    return Place(names, rows=rows.flatten(), transposed=alternating and not bias)


def _linear_attention(full: str, config: Any, name: str) -> Place:
    """Return the place of a weight of Qwen3.5's linear attention.

    Llama.cpp takes the first value head of each key head, then the second ones.
    """
    heads = config.linear_num_key_heads
    times = config.linear_num_value_heads // config.linear_num_key_heads
    first = torch.arange(heads * times).view(times, heads).T.flatten()
    size, before = config.linear_value_head_dim, 2 * heads * config.linear_key_head_dim
    values = (first[:, None] * size + torch.arange(size)).flatten()
    if name in ("in_proj_qkv.weight", "conv1d.weight"):
        return Place((full,), rows=torch.cat([torch.arange(before), before + values]))
    if name == "out_proj.weight":
        return Place((full,), columns=values)
    if name == "A_log":
        return Place((full,), rows=first, number=lambda numbers: (-numbers).log())
    return Place((full,), rows=values if name == "in_proj_z.weight" else first)


def halves(rows: int, size: int) -> Int[Tensor, "rows"]:
    """Return the rows of a projection to heads of this size in the order of
    transformers.

    Llama.cpp rotates the pair 2i and 2i + 1 of a head by the angle of transformers'
    pair i and size / 2 + i.
    """
    return torch.arange(rows).view(-1, size // 2, 2).transpose(1, 2).flatten()


def _ordered(matrix: Coded, source: Place) -> Coded | None:
    """Return a matrix in the order of transformers; None if that splits groups."""
    matrix = matrix if source.rows is None else matrix.rows(source.rows)
    return matrix if source.columns is None else matrix.columns(source.columns)


def _numbers(
    file: GgufFile, source: Place, shape: torch.Size
) -> Float[Tensor, "*shape"]:
    """Return a weight as numbers."""
    parts = [file.numbers(name) for name in source.names]
    whole = torch.cat(
        [part.reshape(-1, part.shape[-1]) if part.dim() > 1 else part for part in parts]
    )
    if whole.dim() > 1 and len(shape) > 1 and source.names[0].endswith(".bias"):
        whole = whole.flatten()  # of experts: an output each
    whole = whole if source.rows is None else whole[source.rows]
    whole = whole if source.columns is None else whole[:, source.columns]
    whole = whole if source.number is None else source.number(whole)
    return _shaped(whole, shape, transposed=source.transposed)


def _shaped(
    whole: Tensor, shape: torch.Size, *, transposed: bool
) -> Float[Tensor, "*shape"]:
    if transposed:
        return whole.view(shape[0], shape[2], shape[1]).transpose(1, 2).contiguous()
    return whole.reshape(shape) if whole.numel() == shape.numel() else whole


def _check_sizes(
    file: GgufFile,
    shapes: Mapping[str, torch.Size],
    held: Mapping[str, tuple[str, ...]],
) -> None:
    """Raise ModelError where tensors have other numbers of weights than the model
    without storage, by its config.
    """
    for name, names in held.items():
        numbers = sum(file.tensors[one].n_elements for one in names)
        if numbers != shapes[name].numel():
            raise ModelError(
                f"cannot read {file.source}: {', '.join(names)} holds {numbers} "
                f"weights, and its fields ask for {shapes[name].numel()}. Download it "
                "again"
            )


def _check_used(
    file: GgufFile,
    model: PreTrainedModel,
    used: set[str],
) -> None:
    """Raise ModelError for a tensor that the model of transformers has no place for: it
    would be left out.
    """
    # layers that predict further tokens, or that the model leaves out
    further = range(layer_count(model.config), file.field("{}.block_count"))
    for name in file.tensors:
        layer = re.match(r"blk\.(\d+)\.", name)
        if (
            name not in used
            and name not in ROPE
            and not (layer and int(layer[1]) in further)
        ):
            raise ModelError(
                f"cannot read {file.source}: {type(model).__name__} has no place for "
                f"its tensor {name}. Use the same model in safetensors"
            )
