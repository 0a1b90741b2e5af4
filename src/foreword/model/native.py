"""Drives Llama-like models on a CPU: one C call a forward (native/llama.c), from the same weights.

Knows the layout of those models; knows nothing about drafting. The probe compares its scores with the model's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as List
from ctypes import byref, c_int64
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import experts, names
from foreword.model.kernel import Kernel, Rows, Turn, activation, inside, ropes, unfit
from foreword.model.linear import fast_bfloat16
from foreword.model.listen import layers_of
from foreword.model.names import body, drop_weights, remembers
from foreword.model.panels import around
from foreword.model.plan import Read
from foreword.model.unpack import looked_up, restore
from foreword.native import llama
from foreword.native.scratch import multiplied

KINDS = (
    "Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Gemma3 Phi3 Olmo2 Olmo3 SmolLM3 Granite Qwen3_5 Lfm2 "
    "Mixtral Qwen2Moe Qwen3Moe Qwen3_5Moe Olmoe GraniteMoe Lfm2Moe "
    "Arcee Cohere Cohere2 Ernie4_5 Exaone4 Glm Glm4 Helium Jais2 Ministral Nemotron Olmo SeedOss StableLm Starcoder2 "
    "GPT2 GPTNeoX OPT Phi HunYuanDenseV1 GraniteMoeHybrid Ministral3 Qwen2VL Qwen2_5_VL Qwen3VL Qwen3VLMoe"
).split()
SEEING = (
    "Gemma3 Mistral3 Llava SmolVLM Idefics3 InternVL Lfm2Vl Qwen2VL Qwen2_5_VL Qwen3VL Qwen3VLMoe Qwen3_5 Qwen3_5Moe"
).split()
"""Kinds that see as well and may be made around such a text model; it is their text that is read."""
SUPPORTED = (
    *(f"{kind}ForCausalLM" for kind in KINDS),
    *(f"{kind}ForConditionalGeneration" for kind in SEEING),
    "GPT2LMHeadModel",
)
CAPPED = "Gemma2Model"
"""Others have the setting too, and do without."""
ODD = ("clip_qkv", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")
"""Settings that the C side does not follow, where they are not off."""


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
    kind = type(body(model)).__name__.removesuffix("Model").removesuffix("Text").removesuffix("Decoder")
    if kind not in KINDS:
        return f"{kind} is none of the kinds of model that it reads"
    if model.device.type != "cpu" or model.dtype != torch.bfloat16:
        return "it is made for bfloat16 on CPU"
    layers, config = layers_of(model), model.config.get_text_config()
    if all(map(remembers, layers)):
        return "none of its layers has attention"
    if (odd := next((name for name in ODD if getattr(config, name, None)), None)) is not None:
        return f"its config says {odd}"
    if any(names.has(layer, "mamba") or (names.has(layer, "shared_mlp") and names.routed(layer)) for layer in layers):
        return "some of its layers remember in another kind of state, or have an MLP beside their experts"
    if names.has(body(model), "project_in") or not any(names.has(body(model), name) for name in names.LAST):
        return "its embeddings have another size than its layers, or no norm comes after these"
    parts = [part for layer in layers for parts in names.linears(layer).values() for part in parts]
    if not all(map(names.ordinary, [*parts, names.mouth(model)])):
        return "its linear layers are not ordinary ones"
    # One of every kind.
    kinds = {(remembers(layer), names.routed(layer)): layer for layer in layers}.values()
    if any(names.centred(norm) for layer in kinds for norm in names.head_norms(layer).values()):
        return "it takes the mean away from queries and keys"
    why = [experts.unfit(layer) for layer in kinds if names.routed(layer)]
    why += [unfit(config, layer, names.mouth(model)) for layer in kinds if not remembers(layer)]
    return next(filter(None, why), None)


class NativeDriver(Kernel):
    """A Hugging Face model, read by the C side from packed copies of its weights."""

    def __init__(self, model: PreTrainedModel, *, owned: bool = False) -> None:
        """A model that is `owned` loses each weight once it is packed, so that none is held twice; see `restore`.

        Embeddings that are its head as well are then read from the packed head.
        """
        super().__init__(rows_of(model), turns_of(model))
        self._hf, self._owned = model, owned
        self._warm = warm(model.config.get_text_config())
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
        config, layers = model.config.get_text_config(), layers_of(model)
        first, queries = _attending(model), config.num_attention_heads
        attention = names.attention(first)
        routed = next(filter(names.routed, layers), None)
        self._experts = None if routed is None else experts.sizes(routed)
        dim, asks = _dim(model), names.shape(names.linears(first)["qkv"][0])[0]
        bare, centred = names.plain(first), names.centred(names.last_norm(model))
        broad = any(norm.weight.numel() > dim for norm in names.head_norms(first).values())
        array = (llama.Layer * len(layers))()
        for described, layer in zip(array, layers, strict=True):
            self._describe_layer(described, layer)
        self._pool.attach(array)
        embeddings: Any = model.get_input_embeddings()
        mouth, places = names.mouth(model), names.places(model)
        vocab, hidden = mouth.weight.shape
        scaling = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1)
        head, tied = self._pack(mouth.weight), embeddings.weight is mouth.weight
        self._table = self._held[-1]
        if self._owned:
            drop_weights(mouth)
        vectors = {name: self._keep(vector) for name, vector in around(model).items()}
        if self._owned and tied:
            embeddings.weight = nn.Parameter(embeddings.weight.new_empty(0), requires_grad=False)
        return llama.Model(
            len(layers), hidden, queries, _kv_heads(model), dim,
            max(map(inside, layers)), vocab, _eps(names.last_norm(model)), attention.scaling,
            None if self._owned and tied else self._keep(embeddings.weight.detach()),
            vectors.pop("norm"), head, array, table=head, tabled=len(self._table),
            activation=activation(config, plain=bare), broad=broad,
            embedding_scale=getattr(body(model), "embedding_multiplier", _embed_scale(embeddings)),
            score_cap=(type(body(model)).__name__ == CAPPED and config.attn_logit_softcapping) or 0,
            logit_cap=getattr(config, "final_logit_softcapping", None) or 0,
            residual_scale=getattr(config, "residual_multiplier", 1),
            logit_scale=0 if scaling == 1 else scaling,
            apart=2 * dim if len(names.linears(first)["qkv"]) == 3 and asks == 2 * queries * dim else 0,
            experts=None if self._experts is None else ctypes.pointer(self._experts),
            places=None if places is None else self._keep(places), placed=0 if places is None else len(places),
            centred=centred, plain=bare, parallel=names.parallel(first),
            turned_first=names.has(attention, "query_layernorm"),
            **vectors,
        )  # fmt: skip

    def _describe_layer(self, described: llama.Layer, layer: Any) -> None:
        super()._describe_layer(described, layer)
        if self._owned:
            drop_weights(layer)
            if names.routed(layer):
                experts.drop(layer)
        if not remembers(layer):
            described.window = names.window(layer)


def _embed_scale(embeddings: Any) -> float:
    """What embeddings are multiplied by where they are looked up, rounded as the model rounds it."""
    return float(getattr(embeddings, "embed_scale", torch.ones(())).to(embeddings.weight.dtype))


def turns_of(model: PreTrainedModel) -> List[Turn | None]:
    """How each layer turns its heads; None = not at all."""
    inner, config, layers = body(model), model.config.get_text_config(), layers_of(model)
    rotary = next((getattr(inner, name) for name in ("rotary_emb", "pos_emb") if hasattr(inner, name)), None)
    if rotary is None:
        return [None] * len(layers)
    if type(inner).__name__.startswith("Cohere"):
        rotary = partial(_apart, rotary)
    if any("mrope_section" in rope for rope in ropes(config)):
        rotary = partial(_in_text, rotary)
    kinds = config.layer_types if ropes(config) != [config.rope_parameters] else [None] * len(layers)
    known = {kind: rotary if kind is None else partial(rotary, layer_type=kind) for kind in set(kinds)}
    return [known[kind] if names.turns(layer) else None for kind, layer in zip(kinds, layers, strict=True)]


def _apart(rotary: Turn, like: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Angles that come twice each, side by side, as others give them: half a head apart."""
    cos, sin = (torch.cat([table[..., ::2], table[..., 1::2]], dim=-1) for table in rotary(like, places))
    return cos, sin


def _in_text(rotary: Turn, like: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Angles by three directions of a grid, which in text are the same."""
    return rotary(like, places.expand(3, *places.shape))


def warm(config: Any) -> Callable[[Tensor], Tensor] | None:
    """What multiplies queries by their place, where something does: it grows with the logarithm of whole contexts."""
    for rope in ropes(config):
        if beta := rope.get("llama_4_scaling_beta"):
            length = rope["original_max_position_embeddings"]
            return lambda places: 1 + beta * torch.log(1 + torch.floor(places / length))
    return None


def rows_of(model: PreTrainedModel) -> Rows:
    """An empty memory for the keys and values of a model."""
    return Rows([0 if remembers(layer) else _kv_heads(model) for layer in layers_of(model)], _dim(model))


def _kv_heads(model: PreTrainedModel) -> int:
    """As its weights have it: a config may say what nobody reads."""
    outputs = [names.shape(part)[0] // _dim(model) for part in names.linears(_attending(model))["qkv"]]
    return outputs[1] if len(outputs) == 3 else (outputs[0] - model.config.get_text_config().num_attention_heads) // 2


def _dim(model: PreTrainedModel) -> int:
    """Numbers in a key."""
    _, depth = names.shape(names.linears(_attending(model))["out"][0])
    return depth // model.config.get_text_config().num_attention_heads


def _eps(norm: Any) -> float:
    """What a norm adds to the mean square; one of them does not say."""
    return next((getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), 1e-5)


def _attending(model: PreTrainedModel) -> Any:
    """The first layer that has attention."""
    return next(layer for layer in layers_of(model) if not remembers(layer))
