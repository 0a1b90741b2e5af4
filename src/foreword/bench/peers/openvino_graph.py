"""Builder of a Llama as a stateful OpenVINO graph: its state is the KV cache; weights
keep their dtype or get codes.

Norms, rotation, attention and weights in few bits have the form that OpenVINO's own
converters write, since OpenVINO fuses that form. Codes and scales are those of NNCF's
`compress_weights` without data.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

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


class _Builder:
    """Builds the graph; operations in float32 here run in the precision that the model
    is compiled for.
    """

    def __init__(self, model: LlamaForCausalLM, form: str | None) -> None:
        self._model = model
        self._shape = shape_of(model.config)
        self._form = form
        self._ov: Any = import_module("openvino")
        self._op: Any = import_module("openvino.opset13")
        self._state: Any = import_module("openvino.op.util")
        self._sinks: list[Any] = []

    def build(self) -> Any:
        op, model = self._op, self._model.model
        ids, mask, positions = (
            self._input(name, [-1, -1], "i64")
            for name in ("input_ids", "attention_mask", "position_ids")
        )
        self._beam = self._input("beam_idx", [-1], "i32")
        self._batch = op.gather(op.shape_of(ids), self._ints([0]), self._int(0))
        self._visible = self._causal(mask, positions)
        self._cos, self._sin = self._rotation(positions)
        # NNCF leaves embedding and head in 8 bits
        ends = None if self._form is None else INT8
        hidden = op.gather(
            self._matrix(model.embed_tokens.weight, ends),
            op.convert(ids, "i32"),
            self._int(0),
        )
        for place, layer in enumerate(model.layers):
            hidden = self._layer(hidden, cast(LlamaDecoderLayer, layer), place)
        head = self._matrix(self._model.lm_head.weight, ends)
        logits = op.matmul(self._norm(hidden, model.norm), head, False, True)
        result = op.result(logits, name="logits")
        result.get_output_tensor(0).set_names({"logits"})
        return self._ov.Model(
            [result], self._sinks, [ids, mask, positions, self._beam], "llama"
        )

    def _layer(self, hidden: Any, layer: LlamaDecoderLayer, place: int) -> Any:
        op = self._op
        attention = layer.self_attn
        mlp = layer.mlp
        read = self._norm(hidden, layer.input_layernorm)
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        query = self._rotated(
            self._split(self._linear(read, attention.q_proj.weight), heads)
        )
        key = self._rotated(
            self._split(self._linear(read, attention.k_proj.weight), kv_heads)
        )
        value = self._split(self._linear(read, attention.v_proj.weight), kv_heads)
        key = self._repeated(self._cached(key, f"past_key_values.{place}.key"))
        value = self._repeated(self._cached(value, f"past_key_values.{place}.value"))
        mixed = op.scaled_dot_product_attention(query, key, value, self._visible)
        mixed = op.reshape(
            op.transpose(mixed, self._ints([0, 2, 1, 3])), self._ints([0, 0, -1]), True
        )
        hidden = op.add(hidden, self._linear(mixed, attention.o_proj.weight))
        read = self._norm(hidden, layer.post_attention_layernorm)
        gated = op.multiply(
            op.swish(self._linear(read, mlp.gate_proj.weight)),
            self._linear(read, mlp.up_proj.weight),
        )
        return op.add(hidden, self._linear(gated, mlp.down_proj.weight))

    # ---- operations

    def _norm(self, hidden: Any, norm: LlamaRMSNorm) -> Any:
        op = self._op
        mean = op.reduce_mean(
            op.power(hidden, self._float(2.0)), self._ints([-1]), True
        )
        scale = op.divide(
            self._float(1.0), op.sqrt(op.add(mean, self._float(norm.variance_epsilon)))
        )
        return op.multiply(self._weight(norm.weight), op.multiply(hidden, scale))

    def _linear(self, read: Any, weight: Tensor) -> Any:
        return self._op.matmul(read, self._matrix(weight, self._form), False, True)

    def _split(self, read: Any, heads: int) -> Any:
        apart = self._op.reshape(
            read, self._ints([0, 0, heads, self._shape.head_dim]), True
        )
        return self._op.transpose(apart, self._ints([0, 2, 1, 3]))

    def _rotation(self, positions: Any) -> tuple[Any, Any]:
        """Return cosines and sines, (batch, 1, token, head)."""
        op, rotary = self._op, self._model.model.rotary_emb
        frequencies = op.constant(rotary.inv_freq.float().numpy()[None, :, None])
        frequencies = self._wide(
            frequencies, [self._batch, self._ints([1]), self._ints([1])]
        )
        angles = op.matmul(
            frequencies,
            op.convert(op.unsqueeze(positions, self._int(1)), "f32"),
            False,
            False,
        )
        angles = op.transpose(angles, self._ints([0, 2, 1]))
        both = op.concat([angles, angles], -1)
        return op.unsqueeze(op.cos(both), self._int(1)), op.unsqueeze(
            op.sin(both), self._int(1)
        )

    def _rotated(self, read: Any) -> Any:
        op, half = self._op, self._shape.head_dim // 2
        last, one = self._ints([3]), self._ints([1])
        first = op.slice(read, self._ints([0]), self._ints([half]), one, last)
        second = op.slice(
            read, self._ints([half]), self._ints([np.iinfo(np.int64).max]), one, last
        )
        rotated = op.concat([op.multiply(second, self._float(-1.0)), first], -1)
        return op.add(op.multiply(read, self._cos), op.multiply(rotated, self._sin))

    def _cached(self, new: Any, name: str) -> Any:
        """Return cached and new entries, (batch, kv_head, token, head), and keep them
        as the next state.
        """
        op, kv_heads = self._op, self._shape.kv_heads
        info = self._state.VariableInfo()
        info.data_shape = self._ov.PartialShape(
            [-1, kv_heads, -1, self._shape.head_dim]
        )
        info.data_type, info.variable_id = self._ov.Type.f32, name
        variable = self._state.Variable(info)
        empty = op.concat(
            [
                self._batch,
                self._ints([kv_heads]),
                self._ints([0]),
                self._ints([self._shape.head_dim]),
            ],
            0,
        )
        past = op.read_value(op.broadcast(self._float(0.0), empty), variable)
        extended = op.concat([op.gather(past, self._beam, self._int(0)), new], 2)
        self._sinks.append(op.assign(extended, variable))
        return extended

    def _repeated(self, read: Any) -> Any:
        """Repeat each kv head for the query heads that read it."""
        if self._shape.group == 1:
            return read
        op = self._op
        kv_heads = self._shape.kv_heads
        head_dim = self._shape.head_dim
        sizes = [
            self._ints([size]) for size in (kv_heads, self._shape.group, 1, head_dim)
        ]
        wide = self._wide(op.unsqueeze(read, self._int(2)), [self._batch, *sizes])
        return op.reshape(wide, self._ints([0, self._shape.heads, -1, head_dim]), True)

    def _wide(self, read: Any, sizes: list[Any]) -> Any:
        """Broadcast axes of length 1 to `sizes`; a size of 1 keeps the axis."""
        return self._op.broadcast(
            read, self._op.concat(sizes, 0), broadcast_spec="BIDIRECTIONAL"
        )

    def _causal(self, mask: Any, positions: Any) -> Any:
        """Return the mask (batch, 1, token, column): 0 at a token's own position and
        before, else -65504.
        """
        op = self._op
        columns = op.range(
            self._int(0),
            op.gather(op.shape_of(mask), self._int(1), self._int(0)),
            self._int(1),
            "i64",
        )
        seen = op.less_equal(columns, op.unsqueeze(positions, self._ints([1, 3])))
        return op.select(seen, self._float(0.0), self._float(-65504.0))

    # ---- inputs and constants

    def _input(self, name: str, shape: list[int], kind: str) -> Any:
        parameter = self._op.parameter(shape, getattr(self._ov.Type, kind), name)
        parameter.get_output_tensor(0).set_names({name})
        # some of OpenVINO's passes use this name, others the tensor's
        parameter.set_friendly_name(name)
        return parameter

    def _weight(self, weight: Tensor) -> Any:
        data = weight.detach().contiguous()
        if data.dtype == torch.float32:
            return self._op.constant(data.numpy())
        kind = getattr(self._ov.Type, TYPES[data.dtype])
        bits = self._ov.Tensor(
            data.view(torch.int16).numpy(), self._ov.Shape(data.shape), kind
        )
        return self._op.convert(self._op.constant(bits), "f32")

    def _matrix(self, weight: Tensor, form: str | None) -> Any:
        """Return a matrix as codes times scales; `form` None keeps the dtype."""
        if form is None:
            return self._weight(weight)
        size = math.gcd(GROUP, weight.shape[1]) if form == INT4 else weight.shape[1]
        codes, scales = quantized(weight.detach(), size, BITS[form])
        data = codes.numpy()
        if form == INT4:  # two to a byte, the first in its lower half
            data = (data[..., ::2] & 15 | data[..., 1::2] << 4).view(np.uint8)
        op, kind = self._op, self._ov.Type.i4 if form == INT4 else self._ov.Type.i8
        constant = op.constant(
            self._ov.Tensor(data, self._ov.Shape(codes.shape), kind),
            shared_memory=False,
        )
        product = op.multiply(op.convert(constant, "f16"), op.constant(scales.numpy()))
        if codes.dim() > 2:
            product = op.reshape(product, self._ints(list(weight.shape)), False)
        return op.convert(product, "f32")

    def _int(self, value: int) -> Any:
        return self._op.constant(value, dtype=np.int64)

    def _ints(self, values: list[int]) -> Any:
        return self._op.constant(np.array(values, dtype=np.int64))

    def _float(self, value: float) -> Any:
        return self._op.constant(value, dtype=np.float32)


def quantized(weight: Tensor, size: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes (output, group, input; int8) of a matrix (output, input), and
    their scales (float16).

    A scale is signed: the largest magnitude of its group gets the lowest code. One
    group leaves out its axis.
    """
    groups = (
        weight.float()
        if size == weight.shape[1]
        else weight.float().unflatten(1, (-1, size))
    )
    low, high = -groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    levels = 2 ** (bits - 1)
    scales = torch.where(low >= high, low.abs(), -high) / levels
    scales = torch.where(scales.abs() < EPSILON, EPSILON, scales)
    codes = (groups / scales).round().clamp(-levels, levels - 1)
    return codes.to(torch.int8), scales.to(torch.float16)
