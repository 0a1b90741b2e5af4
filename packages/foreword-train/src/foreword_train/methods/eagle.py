"""Training of an EAGLE-3 head on the target's hidden states, and then on its own
(training-time test).

After Li et al. 2025 (arXiv 2503.01840), section 3.
"""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from foreword.draft.heads.eagle_checkpoint import DRAFT_TOKENS, dump
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.eagle_published import FLAGS, KIND, default_states, load, read
from foreword.draft.heads.export_layout import ExportLayout
from foreword.draft.heads.loading import head_dtype
from foreword.errors import InvalidRequest
from foreword.model.architectures import head_dim, inner_size, kv_heads
from foreword.model.executors.torch.hooks import lm_head_weight
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.gguf.drafts import command, head_layout
from foreword_train.gguf.writer import interleaved
from foreword_train.methods.unrolled import UnrolledTask, check_steps
from foreword_train.registry import EagleOptions
from foreword_train.task import TrainContext, seeded


class HeadTraining(UnrolledTask):
    """Task that trains a head to predict its target several tokens ahead."""

    def __init__(self, context: TrainContext, options: EagleOptions) -> None:
        """Raises InvalidRequest or ModelError if head and target do not fit."""
        self.head: EagleHead = _head(context, options)
        super().__init__(
            context,
            self.head,
            steps=options.unroll,
            states=self.head.config.states,
            feature=options.feature,
        )

    def save(self, folder: Path) -> None:
        dump(self.head, self.target.dtype, self.target.config).write(folder)

    @property
    def vocabulary(self) -> Int[Tensor, "draft_vocab"]:
        return self.head.tokens

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        table = self.head.embed_tokens
        if table is None:
            return super().embed(tokens)
        return table(tokens)


def _head(context: TrainContext, options: EagleOptions) -> EagleHead:
    """Return the head to train: a given one, or a new one."""
    check_steps(options.unroll)
    if not options.draft:
        return new(context, options)
    head = load(options.draft, context.target.config)
    if head.config.mask is not None:
        raise InvalidRequest(
            f"cannot train on from {options.draft}: "
            "it drafts all tokens in one forward "
            "(P-EAGLE). Choose a head of EAGLE-3, "
            "or begin a new one"
        )
    size = head.config.llama.hidden_size
    if options.feature and size != head.config.target_hidden:
        raise InvalidRequest(
            f"cannot train {options.draft} with the feature loss: its hidden size of "
            f"{size} differs from the target's {head.config.target_hidden}. Leave "
            "'feature' at 0"
        )
    return head


def new(context: TrainContext, options: EagleOptions) -> EagleHead:
    """Create a float32 head of the target's sizes that starts with its LM head."""
    config = context.target.config.get_text_config()
    count, size = layer_count(config), config.hidden_size
    heads = config.num_attention_heads
    context_length = getattr(config, "max_position_embeddings", 32768)
    llama = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=size,
        intermediate_size=options.intermediate or inner_size(config),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads(config),
        head_dim=head_dim(config),
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        max_position_embeddings=context_length,
        rope_parameters=_rope(config),
    )
    vocab = min(options.draft_vocab, config.vocab_size)
    sizes = EagleConfig(
        llama=llama,
        states=_states(options.states, count),
        target_hidden=size,
        draft_vocab=vocab,
    )
    head = seeded(context.seed, lambda: EagleHead(sizes))
    if vocab < config.vocab_size:
        frequent = context.counts().topk(vocab).indices.sort().values
        head.d2t.copy_(frequent - torch.arange(vocab))
        head.t2d.zero_()[frequent] = True
    weight = lm_head_weight(context.target)
    if weight is not None:
        head.lm_head.weight.data.copy_(weight[head.tokens])
    return head


def _states(spec: str | None, layers: int) -> tuple[int, ...]:
    """Parse the states of an option. Default: the states that every engine reads, if
    the target has enough layers.
    """
    if spec is None:
        if layers > 5:
            return default_states(layers)
        return tuple(sorted({layers // 2, layers - 1, layers}))
    numbers = [part.strip() for part in spec.split(",")]
    if not all(part.isdecimal() and int(part) <= layers for part in numbers):
        raise InvalidRequest(
            f"cannot read states {spec!r}: 'states' must be numbers from 0 to "
            f"{layers}, like 2,4,5"
        )
    return tuple(map(int, numbers))


def _rope(config: PreTrainedConfig) -> dict[str, object]:
    """Return the target's RoPE if it depends on position alone, alike in all layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("default", "llama3", "linear"):
        return dict(rope)
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
    }


def pack_gguf(checkpoint: Checkpoint, target: HFConfig, _: str) -> ExportLayout:
    """Return a head for llama.cpp; raises as `head_layout` does, and ModelError where
    it is for another target.
    """
    head = read(checkpoint, target)
    config = head.config
    llama = config.llama
    llama.num_hidden_layers = 1  # which some configs leave out
    dtype = head_dtype(checkpoint)
    tensors = {**dump(head, dtype, target).tensors}
    heads = {"q": llama.num_attention_heads, "k": llama.num_key_value_heads}
    for part, count in heads.items():
        name = f"midlayer.self_attn.{part}_proj.weight"
        tensors[name] = interleaved(tensors[name], count)
    fields = {f"{KIND}.{name}": getattr(config, name) for name in FLAGS[:2]}
    fields[f"{KIND}.target_hidden_size"] = config.target_hidden
    count = len(config.states)
    features = {
        **{name: getattr(config, name) for name in FLAGS[2:]},
        "norms of queries and keys": config.head_norms,
        "a sliding window": config.window is not None,
        "a mask token (P-EAGLE)": config.mask is not None,
        "MLP biases": llama.mlp_bias,
        f"{count} hidden states": count != 3,
    }
    return head_layout(
        KIND,
        Checkpoint(checkpoint.source, {}, tensors),
        llama,
        target,
        states=config.states,
        rotary=head.rotary,
        fields=fields,
        features=features,
        start=command(KIND, DRAFT_TOKENS, target),
    )
