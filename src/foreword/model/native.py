"""Drives Llama-like models on a CPU: one C call a forward (native/llama.c), from the same weights.

Knows the layout of those models; knows nothing about drafting. The probe compares its scores with the model's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as List
from ctypes import byref, c_int64
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import experts
from foreword.model.kernel import Kernel, Rows, Turn, activation, inside, unfit
from foreword.model.linear import drop_weights, fast_bfloat16
from foreword.model.panels import body, remembers, scales
from foreword.model.plan import Read
from foreword.model.unpack import looked_up, restore
from foreword.native import llama
from foreword.native.scratch import multiplied

KINDS = (
    "Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Gemma3 Phi3 Olmo2 Olmo3 SmolLM3 Granite Qwen3_5 Lfm2 "
    "Mixtral Qwen2Moe Qwen3Moe Qwen3_5Moe Olmoe GraniteMoe Lfm2Moe"
).split()
SUPPORTED = (*(f"{kind}ForCausalLM" for kind in KINDS), "Gemma3ForConditionalGeneration")
"""The last one sees as well; it is its text that is read."""
CAPPED = "Gemma2ForCausalLM"
"""Others have the setting too, and do without."""


def usual(architectures: List[str] | None) -> list[torch.dtype]:
    """What a checkpoint of this kind is loaded in on a CPU: the first, or the last if it is then not driven this way.

    Where nothing multiplies bfloat16 in hardware it is still half the bytes to read, but torch is slow with it.
    """
    if fast_bfloat16():
        return [torch.bfloat16]
    here = llama.reason() is None and any(kind in SUPPORTED for kind in architectures or ())
    return [torch.bfloat16, torch.float32] if here else [torch.float32]


def refused(model: PreTrainedModel) -> str | None:
    """Why this model cannot be driven this way; None if it can."""
    kind = type(model).__name__
    if kind not in SUPPORTED:
        return f"it reads models like {', '.join(KINDS)}, and {kind} is none of them"
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return "it is made for bfloat16 on CPU"
    if all(map(remembers, body(model).layers)):
        return "none of its layers has attention"
    layers, config = body(model).layers, model.config.get_text_config()
    if getattr(config, "clip_qkv", None) is not None:
        return "its queries, keys and values are clipped"
    # One of every kind.
    kinds = {(remembers(layer), experts.routed(layer)): layer for layer in layers}.values()
    why = [experts.unfit(layer) for layer in kinds if experts.routed(layer)]
    why += [unfit(config, layer, model.lm_head) for layer in kinds if not remembers(layer)]
    return next(filter(None, why), None)


class NativeDriver(Kernel):
    """A Hugging Face model, read by the C side from packed copies of its weights."""

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        """A model that is `owned` loses each weight once it is packed, so that none is held twice; see `restore`.

        Embeddings that are its head as well are then read from the packed head.
        """
        super().__init__(rows_of(model), turns_of(model))
        self._hf, self._owned = model, owned
        described = self._describe(model)
        self.describe(described, described.vocab)

    def restore(self, model: PreTrainedModel | None = None) -> None:
        """Give the model its weights back, for another way to drive it; or give them to another one of its kind.

        Raises ModelError where they are held in 8 bits.
        """
        if self._model.coding != llama.WHOLE:
            raise ModelError("its weights are held in 8 bits, for guesses alone; with learn=True they are whole")
        restore(self._hf if model is None else model, self._model, self._held)

    def lighten(self, *others: llama.Model) -> None:
        if not self._model.embedding and self._model.coding == llama.WHOLE:  # they are looked up in the head
            self._table = self._table.clone()
            self._model.table = self._keep(self._table)
        super().lighten(*others)

    def hear(
        self, reads: List[Read], layers: List[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        logits = torch.empty(sum(read.keep for read in reads), self._model.vocab)
        forward = self._prepare(reads, logits)
        heard = torch.empty(forward.rows, len(layers) * self._model.hidden)
        heed = (c_int64 * len(layers))(*layers)
        forward.heeded, forward.heed, forward.heard = len(layers), ctypes.addressof(heed), heard.data_ptr()
        self._library.foreword_forward(byref(self._model), byref(forward), self._threads)
        return logits, heard

    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        mouth = llama.Model.from_buffer_copy(self._model)
        mouth.layers, mouth.norm, mouth.logit_cap, mouth.logit_scale = 0, None, 0, 0
        return multiplied(self._library, mouth, self._scratch, hidden, self._threads)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """As the model itself embeds them."""
        if self._model.embedding:
            return self._hf.get_input_embeddings()(tokens)
        return looked_up(self._table, tokens) * _embed_scale(self._hf.get_input_embeddings())

    def _describe(self, model: PreTrainedModel) -> llama.Model:
        config, inner = model.config.get_text_config(), body(model)
        layers = inner.layers
        attention, queries = _attending(model).self_attn, config.num_attention_heads
        routed = next(filter(experts.routed, layers), None)
        self._experts = None if routed is None else experts.sizes(routed)
        array = (llama.Layer * len(layers))()
        for described, layer in zip(array, layers, strict=True):
            self._describe_layer(described, layer)
        self._pool.attach(array)
        vocab, hidden = model.lm_head.weight.shape
        embeddings, normed = inner.embed_tokens, getattr(attention, "q_norm", None)
        scaling = getattr(config, "logits_scaling", 1)
        eps, last = getattr(config, "rms_norm_eps", None) or config.norm_eps, last_norm(inner)
        head, tied = self._pack(model.lm_head.weight), embeddings.weight is model.lm_head.weight
        self._table = self._held[-1]
        if self._owned:
            drop_weights(model.lm_head)
        if self._owned and tied:
            embeddings.weight = nn.Parameter(embeddings.weight.new_empty(0), requires_grad=False)
        return llama.Model(
            len(layers), hidden, queries, config.num_key_value_heads, attention.head_dim,
            max(map(inside, layers)), vocab, eps, attention.scaling,
            None if self._owned and tied else self._keep(embeddings.weight.detach()),
            self._keep(scales(last)), head, array, table=head, tabled=len(self._table),
            activation=activation(config), broad=normed is not None and normed.weight.numel() > attention.head_dim,
            embedding_scale=getattr(inner, "embedding_multiplier", _embed_scale(embeddings)),
            score_cap=(type(model).__name__ == CAPPED and config.attn_logit_softcapping) or 0,
            logit_cap=getattr(config, "final_logit_softcapping", None) or 0,
            residual_scale=getattr(config, "residual_multiplier", 1),
            logit_scale=0 if scaling == 1 else 1 / scaling,
            apart=0 if hasattr(attention, "qkv_proj") else attention.q_proj.out_features // queries,
            experts=None if self._experts is None else ctypes.pointer(self._experts),
        )  # fmt: skip

    def _describe_layer(self, described: llama.Layer, layer: Any) -> None:
        super()._describe_layer(described, layer)
        if self._owned:
            drop_weights(layer)
            if experts.routed(layer):
                experts.drop(layer)
        if remembers(layer):
            return
        # Where a layer does not say whether its window is open, all layers of the model have the same.
        attention = layer.self_attn
        described.window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)) or 0


def _embed_scale(embeddings: Any) -> float:
    """What embeddings are multiplied by where they are looked up, rounded as the model rounds it."""
    return float(getattr(embeddings, "embed_scale", torch.ones(())).to(embeddings.weight.dtype))


def turns_of(model: PreTrainedModel) -> List[Turn | None]:
    """How each layer turns its heads; None = not at all."""
    inner, config = body(model), model.config.get_text_config()
    rotary, layers = inner.rotary_emb if hasattr(inner, "rotary_emb") else inner.pos_emb, inner.layers
    kinds = config.layer_types if _many_ropes(config) else [None] * len(layers)
    known = {kind: rotary if kind is None else partial(rotary, layer_type=kind) for kind in set(kinds)}
    turned = [not remembers(layer) and getattr(layer.self_attn, "use_rope", True) for layer in layers]
    return [known[kind] if turns else None for kind, turns in zip(kinds, turned, strict=True)]


def _many_ropes(config: Any) -> bool:
    return any(isinstance(value, dict) for value in (config.rope_parameters or {}).values())


def rows_of(model: PreTrainedModel) -> Rows:
    """An empty memory for the keys and values of a model."""
    count = model.config.get_text_config().num_key_value_heads
    heads = [0 if remembers(layer) else count for layer in body(model).layers]
    return Rows(heads, _attending(model).self_attn.head_dim)


def last_norm(inner: Any) -> nn.Module:
    """The norm at the end of a model's body."""
    return inner.norm if hasattr(inner, "norm") else inner.embedding_norm


def _attending(model: PreTrainedModel) -> Any:
    """The first layer that has attention."""
    return next(layer for layer in body(model).layers if not remembers(layer))
