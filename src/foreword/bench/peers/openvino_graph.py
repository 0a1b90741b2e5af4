"""Builder of a Llama as a stateful OpenVINO graph: its state is the KV cache; weights
keep their dtype or get codes.

Norms, rotation, attention and quantized weights have the form that OpenVINO's own
converters write, since OpenVINO fuses that form. Codes and scales equal the output of
NNCF's `compress_weights` without data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRMSNorm,
)

from foreword.bench.inflate.model import shape_of
from foreword.bench.peers.convert import INT4, INT8

TYPES = {torch.bfloat16: "bf16", torch.float32: "f32", torch.float16: "f16"}
BITS = {INT8: 8, INT4: 4}
GROUP = 128
"""Inputs that share a scale in INT4; NNCF's default."""
EPSILON = torch.finfo(torch.float32).eps
"""Least scale, of groups without weights."""


def graph(model: LlamaForCausalLM, form: str | None = None) -> Any:
    """Return the `openvino.Model`, with matrices in `form`, INT8 or INT4; None keeps
    the dtype.

    Inputs are input_ids, attention_mask, position_ids (batch, token) and beam_idx
    (batch); the output is logits (batch, token, vocab).

    Positions are consecutive from 0, without padding.
    """
    return _Builder(model, form).build()


class _Operations:
    """Operations with plain numbers in place of constants."""

    def __init__(self) -> None:
        self.openvino: Any = import_module("openvino")
        self.raw: Any = import_module("openvino.opset13")

    def whole(self, value: int) -> Any:
        return self.raw.constant(value, dtype=np.int64)

    def wholes(self, values: Sequence[int]) -> Any:
        return self.raw.constant(np.array(values, dtype=np.int64))

    def real(self, value: float) -> Any:
        return self.raw.constant(value, dtype=np.float32)

    def reshape(self, read: Any, sizes: Sequence[int]) -> Any:
        """Give other sizes; 0 keeps one, and -1 is what is left."""
        return self.raw.reshape(read, self.wholes(sizes), True)

    def transpose(self, read: Any, order: Sequence[int]) -> Any:
        return self.raw.transpose(read, self.wholes(order))

    def unsqueeze(self, read: Any, axis: int) -> Any:
        place = self.whole(axis)
        return self.raw.unsqueeze(read, place)

    def broadcast(self, read: Any, sizes: Sequence[Any]) -> Any:
        """Broadcast axes of length 1 to `sizes`; a size of 1 keeps the axis."""
        return self.raw.broadcast(
            read,
            self.raw.concat(sizes, 0),
            broadcast_spec="BIDIRECTIONAL",
        )

    def times(self, read: Any, matrix: Any) -> Any:
        """Multiply by the transposed matrix, (output, input)."""
        return self.raw.matmul(read, matrix, False, True)

    def slice(self, read: Any, start: int, stop: int) -> Any:
        """Take entries of the last of four axes."""
        return self.raw.slice(
            read,
            self.wholes([start]),
            self.wholes([stop]),
            self.wholes([1]),
            self.wholes([3]),
        )

    def input(self, name: str, shape: Sequence[int], kind: str) -> Any:
        parameter = self.raw.parameter(
            list(shape),
            getattr(self.openvino.Type, kind),
            name,
        )
        parameter.get_output_tensor(0).set_names({name})
        # some of OpenVINO's passes use this name, others the tensor's
        parameter.set_friendly_name(name)
        return parameter

    def weight(self, weight: Tensor) -> Any:
        """Return a weight in its dtype, converted to float32 where it is read."""
        data = weight.detach().contiguous()
        if data.dtype == torch.float32:
            return self.raw.constant(data.numpy())
        bits = self.openvino.Tensor(
            data.view(torch.int16).numpy(),
            self.openvino.Shape(data.shape),
            getattr(self.openvino.Type, TYPES[data.dtype]),
        )
        return self.raw.convert(self.raw.constant(bits), "f32")

    def matrix(self, weight: Tensor, form: str | None) -> Any:
        """Return a matrix as codes times scales; `form` None keeps the dtype."""
        if form is None:
            return self.weight(weight)
        inputs = weight.shape[1]
        size = math.gcd(GROUP, inputs) if form == INT4 else inputs
        codes, scales = quantized(weight.detach(), size, BITS[form])
        product = self.raw.multiply(
            self.raw.convert(self._codes(codes, form), "f16"),
            self.raw.constant(scales.numpy()),
        )
        if codes.dim() > 2:
            sizes = self.wholes(list(weight.shape))
            product = self.raw.reshape(product, sizes, False)
        return self.raw.convert(product, "f32")

    def _codes(self, codes: Tensor, form: str) -> Any:
        data, kind = codes.numpy(), self.openvino.Type.i8
        if form == INT4:  # two to a byte, the first in its lower half
            pairs = data[..., ::2] & 15 | data[..., 1::2] << 4
            data, kind = pairs.view(np.uint8), self.openvino.Type.i4
        held = self.openvino.Tensor(
            data,
            self.openvino.Shape(codes.shape),
            kind,
        )
        return self.raw.constant(held, shared_memory=False)


class _Builder:
    """Builds the graph; operations in float32 here run in the precision that the model
    is compiled for.
    """

    def __init__(self, model: LlamaForCausalLM, form: str | None) -> None:
        self._model = model
        self._shape = shape_of(model.config)
        self._form = form
        self._ops = _Operations()
        self._op = self._ops.raw
        self._state: Any = import_module("openvino.op.util")
        self._sinks: list[Any] = []

    def build(self) -> Any:
        op, ops = self._op, self._ops
        model = self._model.model
        ids = ops.input("input_ids", [-1, -1], "i64")
        mask = ops.input("attention_mask", [-1, -1], "i64")
        positions = ops.input("position_ids", [-1, -1], "i64")
        self._beam = ops.input("beam_idx", [-1], "i32")
        self._batch = op.gather(
            op.shape_of(ids),
            ops.wholes([0]),
            ops.whole(0),
        )
        self._visible = self._causal(mask, positions)
        self._cos, self._sin = self._rotation(positions)
        # NNCF leaves embedding and head in 8 bits
        ends = None if self._form is None else INT8
        hidden = op.gather(
            ops.matrix(model.embed_tokens.weight, ends),
            op.convert(ids, "i32"),
            ops.whole(0),
        )
        for place, layer in enumerate(model.layers):
            hidden = self._layer(hidden, cast(LlamaDecoderLayer, layer), place)
        head = ops.matrix(self._model.lm_head.weight, ends)
        logits = ops.times(self._norm(hidden, model.norm), head)
        result = op.result(logits, name="logits")
        result.get_output_tensor(0).set_names({"logits"})
        inputs = [ids, mask, positions, self._beam]
        return ops.openvino.Model(
            [result],
            self._sinks,
            inputs,
            "llama",
        )

    def _layer(self, hidden: Any, layer: LlamaDecoderLayer, place: int) -> Any:
        op = self._op
        read = self._norm(hidden, layer.input_layernorm)
        mixed = self._attention(read, layer.self_attn, place)
        hidden = op.add(hidden, mixed)
        read = self._norm(hidden, layer.post_attention_layernorm)
        mlp = layer.mlp
        gate = self._linear(read, mlp.gate_proj.weight)
        up = self._linear(read, mlp.up_proj.weight)
        gated = op.multiply(op.swish(gate), up)
        down = self._linear(gated, mlp.down_proj.weight)
        return op.add(hidden, down)

    def _attention(self, read: Any, layer: LlamaAttention, place: int) -> Any:
        ops = self._ops
        heads = self._shape.heads
        kv_heads = self._shape.kv_heads
        query = self._linear(read, layer.q_proj.weight)
        query = self._rotated(self._split(query, heads))
        key = self._linear(read, layer.k_proj.weight)
        key = self._rotated(self._split(key, kv_heads))
        value = self._linear(read, layer.v_proj.weight)
        value = self._split(value, kv_heads)
        key = self._cached(key, f"past_key_values.{place}.key")
        value = self._cached(value, f"past_key_values.{place}.value")
        mixed = self._op.scaled_dot_product_attention(
            query,
            self._repeated(key),
            self._repeated(value),
            self._visible,
        )
        mixed = ops.transpose(mixed, [0, 2, 1, 3])
        mixed = ops.reshape(mixed, [0, 0, -1])
        return self._linear(mixed, layer.o_proj.weight)

    def _norm(self, hidden: Any, norm: LlamaRMSNorm) -> Any:
        op, ops = self._op, self._ops
        squares = op.power(hidden, ops.real(2.0))
        mean = op.reduce_mean(squares, ops.wholes([-1]), True)
        mean = op.add(mean, ops.real(norm.variance_epsilon))
        scale = op.divide(ops.real(1.0), op.sqrt(mean))
        scaled = op.multiply(hidden, scale)
        return op.multiply(ops.weight(norm.weight), scaled)

    def _linear(self, read: Any, weight: Tensor) -> Any:
        return self._ops.times(read, self._ops.matrix(weight, self._form))

    def _split(self, read: Any, heads: int) -> Any:
        ops = self._ops
        apart = ops.reshape(read, [0, 0, heads, self._shape.head_dim])
        return ops.transpose(apart, [0, 2, 1, 3])

    def _rotation(self, positions: Any) -> tuple[Any, Any]:
        """Return cosines and sines, (batch, 1, token, head)."""
        op, ops = self._op, self._ops
        rotary = self._model.model.rotary_emb
        inverse = rotary.inv_freq.float().numpy()[None, :, None]
        frequencies = ops.broadcast(
            op.constant(inverse),
            [self._batch, ops.wholes([1]), ops.wholes([1])],
        )
        row = op.convert(ops.unsqueeze(positions, 1), "f32")
        angles = op.matmul(frequencies, row, False, False)
        angles = ops.transpose(angles, [0, 2, 1])
        both = op.concat([angles, angles], -1)
        cos = ops.unsqueeze(op.cos(both), 1)
        return cos, ops.unsqueeze(op.sin(both), 1)

    def _rotated(self, read: Any) -> Any:
        op, ops = self._op, self._ops
        half = self._shape.head_dim // 2
        first = ops.slice(read, 0, half)
        second = ops.slice(read, half, np.iinfo(np.int64).max)
        negative = op.multiply(second, ops.real(-1.0))
        rotated = op.concat([negative, first], -1)
        return op.add(
            op.multiply(read, self._cos),
            op.multiply(rotated, self._sin),
        )

    def _cached(self, new: Any, name: str) -> Any:
        """Return cached and new entries, (batch, kv_head, token, head), and keep them
        as the next state.
        """
        op, ops = self._op, self._ops
        dim = self._shape.head_dim
        kv_heads = self._shape.kv_heads
        info = self._state.VariableInfo()
        info.data_shape = ops.openvino.PartialShape([-1, kv_heads, -1, dim])
        info.data_type = ops.openvino.Type.f32
        info.variable_id = name
        variable = self._state.Variable(info)
        sizes = [ops.wholes([size]) for size in (kv_heads, 0, dim)]
        empty = op.concat([self._batch, *sizes], 0)
        past = op.broadcast(ops.real(0.0), empty)
        past = op.read_value(past, variable)
        past = op.gather(past, self._beam, ops.whole(0))
        extended = op.concat([past, new], 2)
        self._sinks.append(op.assign(extended, variable))
        return extended

    def _repeated(self, read: Any) -> Any:
        """Repeat each kv head for the query heads that read it."""
        shape, ops = self._shape, self._ops
        if shape.group == 1:
            return read
        counts = (shape.kv_heads, shape.group, 1, shape.head_dim)
        sizes = [ops.wholes([size]) for size in counts]
        wide = ops.unsqueeze(read, 2)
        wide = ops.broadcast(wide, [self._batch, *sizes])
        return ops.reshape(
            wide,
            [0, shape.heads, -1, shape.head_dim],
        )

    def _causal(self, mask: Any, positions: Any) -> Any:
        """Return the mask (batch, 1, token, column): 0 at a token's own position and
        before, else -65504.
        """
        op, ops = self._op, self._ops
        count = op.gather(
            op.shape_of(mask),
            ops.whole(1),
            ops.whole(0),
        )
        columns = op.range(
            ops.whole(0),
            count,
            ops.whole(1),
            "i64",
        )
        rows = op.unsqueeze(positions, ops.wholes([1, 3]))
        seen = op.less_equal(columns, rows)
        return op.select(seen, ops.real(0.0), ops.real(-65504.0))


def quantized(weight: Tensor, size: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes (output, group, input; int8) of a matrix (output, input), and
    their scales (float16).

    A scale is signed: the largest magnitude of its group gets the lowest code. One
    group leaves out its axis.
    """
    groups = weight.float()
    if size != weight.shape[1]:
        groups = groups.unflatten(1, (-1, size))
    low = -groups.amin(-1, keepdim=True)
    high = groups.amax(-1, keepdim=True)
    levels = 2 ** (bits - 1)
    scales = torch.where(low >= high, low.abs(), -high) / levels
    scales = torch.where(scales.abs() < EPSILON, EPSILON, scales)
    codes = (groups / scales).round()
    codes = codes.clamp(-levels, levels - 1)
    return codes.to(torch.int8), scales.to(torch.float16)
