"""Distillation of a small language model from the target's logits, off-policy,
on-policy or mixed (DistillSpec).
"""

import copy
import random
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedConfig

from foreword.draft.heads.export_layout import (
    SGLANG,
    VLLM,
    ExportLayout,
    sglang,
    unsupported_engine,
    vllm,
)
from foreword.errors import InvalidRequest, ModelError
from foreword.model import HFModel, Tokenizer, check_same, load_tokenizer
from foreword.model.architectures import INNER, head_dim, is_seq2seq, loader
from foreword.model.head_layers import HFConfig
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword_train.data.on_policy import Writer
from foreword_train.data.packing import Block
from foreword_train.data.pairs import forward_inputs
from foreword_train.gguf.drafts import LLAMA_CPP, command, write_model
from foreword_train.gguf.source import source
from foreword_train.registry import LmOptions
from foreword_train.task import TrainContext, TrainTask, accepted, seeded


class Distillation(TrainTask):
    """Task that trains a draft model on the target's next-token distribution."""

    def __init__(
        self, context: TrainContext, options: LmOptions, module: HFModel | None = None
    ) -> None:
        """`module` is the draft model, if it is in memory already.

        Raises InvalidRequest for a share outside 0 to 1, a temperature that is not
        above 0, or too long blocks.
        """
        target = context.target
        temperature = context.temperature
        on_policy = options.on_policy
        if not 0 <= on_policy <= 1 or temperature <= 0:
            raise InvalidRequest(
                f"cannot train with on_policy {on_policy} and temperature "
                f"{temperature}: "
                "'on_policy' must be in [0, 1] and 'temperature' above 0"
            )
        module = _initial_model(context, options) if module is None else module
        check_draft(context, module)
        if context.start and on_policy:
            raise InvalidRequest(
                f"cannot train with on_policy {on_policy}: {context.source} is an "
                "encoder-decoder. Set on_policy to 0"
            )
        super().__init__(context, module)
        self.draft = module
        self._tokenizer = context.tokenizer
        self.on_policy = on_policy
        self._vocab = min(
            target.config.get_text_config().vocab_size,
            module.config.get_text_config().vocab_size,
        )
        self._writer = Writer(module, context.eos, temperature)

    def save(self, folder: Path) -> None:
        write(self.draft, folder, self.target, self._tokenizer)

    def data(self, block: Block, seed: int) -> Block:
        if self.on_policy and random.Random(seed).random() < self.on_policy:
            return self._writer.rewrite(block, seed)
        return block

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        target, draft = self._logits(module, block)
        return self.compared(target, draft).sum()

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return the loss, acceptance at temperature 1 (1 - TV), and at 0 (argmax)."""
        target, draft = self._logits(module, block)
        acceptance, same = accepted(target, draft)
        return {
            "loss": self.compared(target, draft).sum(),
            "acceptance": acceptance.sum(),
            "agreement": same.sum(),
        }

    def _logits(
        self, module: nn.Module, block: Block
    ) -> tuple[Float[Tensor, "learnt vocab"], Float[Tensor, "learnt vocab"]]:
        """Return both models' logits where a learnt token comes next."""
        read, texts = forward_inputs(block, self._start)
        learnt = texts.learnt[:, 1:]
        with torch.no_grad():
            target = self.target(**read).logits[:, :-1][learnt]
        draft = module(**read).logits[:, :-1][learnt]
        return target[:, : self._vocab], draft[:, : self._vocab]


def check_draft(context: TrainContext, draft: HFModel) -> None:
    """Raise InvalidRequest for blocks longer than the draft's context, ModelError for a
    recurrent draft or target.
    """
    limit = getattr(draft.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and context.length > limit:
        raise InvalidRequest(
            f"cannot train on blocks of {context.length} tokens: they exceed the "
            f"draft's context of {limit}. "
            "Lower 'length'"
        )
    check_packable(context.target)
    check_packable(draft)


def check_packable(model: HFModel) -> None:
    """Raise ModelError for a recurrent model."""
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"cannot train with {type(model).__name__}: it is recurrent, so records "
            "packed side by side would mix. Use a model without recurrent layers"
        )


def write(
    draft: HFModel, folder: Path, target: HFModel, tokenizer: Tokenizer | None
) -> None:
    """Write the draft as transformers does, in the dtype of the target's checkpoint,
    with the tokenizer, if any.
    """
    stored = copy.deepcopy(draft)
    nn.Module.to(stored, target.dtype)
    stored.generation_config = target.generation_config
    stored.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def pack(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a layout that copies the model with its tokenizer."""
    start = {VLLM: vllm("draft_model", 5), SGLANG: sglang("STANDALONE")}
    start[LLAMA_CPP] = command("simple", 5, target)
    return copied(checkpoint, target, engine, start)


def copied(
    checkpoint: Checkpoint,
    target: HFConfig,
    engine: str,
    start: Mapping[str, tuple[str, ...]],
) -> ExportLayout:
    """Return a layout that copies the model with its tokenizer; `start`: command of
    each engine that serves it. Raises InvalidRequest for another engine.
    """
    if engine not in start:
        raise unsupported_engine(
            f"a draft model of its own ({checkpoint.source}) in this layout",
            engine,
            tuple(start),
        )
    dtype = next(iter(checkpoint.tensors.values())).dtype
    model, tokenizer = load(checkpoint.source, dtype), load_tokenizer(checkpoint.source)
    if target.name_or_path:
        check_same(load_tokenizer(target.name_or_path), tokenizer)

    def write(folder: Path) -> None:
        if engine == LLAMA_CPP:
            write_model(source(checkpoint.source, model, tokenizer), folder)
        else:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)

    return ExportLayout(
        write=write, names=frozenset(checkpoint.tensors), start=start[engine]
    )


def _initial_model(context: TrainContext, options: LmOptions) -> HFModel:
    seq2seq = is_seq2seq(context.target.config)
    if options.draft is None:
        sizes = {
            "layers": options.layers,
            "hidden": options.hidden,
            "seed": context.seed,
        }
        if seq2seq:
            sizes["encoder_layers"] = options.encoder_layers or options.layers
        return new(context.source, **sizes, trusted=context.trusted)
    draft = given_model(context, options.draft)
    if is_seq2seq(draft.config) != seq2seq:
        raise InvalidRequest(
            f"cannot train {options.draft}: {context.source} is an encoder-decoder. "
            "Give a draft that is one too"
        )
    return draft


def given_model(context: TrainContext, source: str | Path) -> HFModel:
    """Load a draft model, float32. Raises VocabularyMismatch for another tokenizer."""
    if context.tokenizer is not None:
        theirs = load_tokenizer(source, trust_remote_code=context.trusted)
        check_same(context.tokenizer, theirs)
    seq2seq = is_seq2seq(context.target.config)
    return load(source, torch.float32, trusted=context.trusted, seq2seq=seq2seq)


def load(
    source: str | Path,
    dtype: torch.dtype,
    *,
    trusted: bool = False,
    seq2seq: bool = False,
) -> HFModel:
    """Load a model of transformers on the CPU; an encoder-decoder only with `seq2seq`.

    Raises ModelError when it cannot be loaded.
    """
    config = read_config(source, trust_remote_code=trusted, seq2seq=seq2seq)
    return load_weights(source, config, dtype, trust_remote_code=trusted)


def smaller(
    config: PreTrainedConfig, layers: int = 1, hidden: int | None = None
) -> PreTrainedConfig:
    """Return the target's config with fewer layers and, if given, another hidden size;
    the rest is scaled along.

    Heads keep their size. Raises InvalidRequest when the sizes do not fit together.
    """
    result = copy.deepcopy(config)
    target_hidden: int = config.hidden_size
    head = head_dim(config)
    hidden = target_hidden if hidden is None else hidden
    if layers < 1 or hidden < head or hidden % head:
        raise InvalidRequest(
            f"cannot create a draft with {layers} layers and hidden size {hidden}: it "
            "needs one layer or more, "
            f"and a hidden size in multiples of {head}, the target's head size"
        )
    result.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        result.layer_types = config.layer_types[-layers:]
    if hidden != target_hidden:
        heads = hidden // head
        result.hidden_size, result.num_attention_heads = hidden, heads
        if hasattr(config, "num_key_value_heads"):
            groups = config.num_attention_heads // config.num_key_value_heads
            result.num_key_value_heads = (
                heads // groups if heads % groups == 0 else heads
            )
        for name in INNER:
            if (inner := getattr(config, name, None)) is not None:
                setattr(
                    result, name, max(8, round(inner * hidden / target_hidden / 8) * 8)
                )
    return result


def new(
    target: str | Path,
    *,
    layers: int = 1,
    hidden: int | None = None,
    encoder_layers: int | None = None,
    seed: int = 0,
    trusted: bool = False,
) -> HFModel:
    """Create a float32 draft of the target's architecture with random weights.

    `encoder_layers` are given for an encoder-decoder, and for no other target.
    """
    config = read_config(
        target, trust_remote_code=trusted, seq2seq=encoder_layers is not None
    )
    if encoder_layers is None:
        config = smaller(config, layers, hidden)
    else:
        config = smaller_seq2seq(config, layers, encoder_layers, hidden)

    def make() -> HFModel:
        return loader(config).from_config(
            config, dtype=torch.float32, trust_remote_code=trusted
        )

    return seeded(seed, make)


DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
ENCODER_LAYERS = ("num_layers", "encoder_layers")
HEAD_COUNTS = ("num_heads", "encoder_attention_heads", "decoder_attention_heads")
INNER_SIZES = ("d_ff", "encoder_ffn_dim", "decoder_ffn_dim")
"""Config names of the sizes of encoder-decoders."""


def smaller_seq2seq(
    config: PreTrainedConfig, layers: int, encoder_layers: int, hidden: int | None
) -> PreTrainedConfig:
    """Return an encoder-decoder's config with fewer layers and, if given, another
    hidden size.

    Heads keep their size. Raises InvalidRequest when the sizes do not fit together.
    """
    result = copy.deepcopy(config)
    heads = [name for name in HEAD_COUNTS if hasattr(config, name)]
    before: int = config.hidden_size
    head = before // getattr(config, heads[0])
    hidden = before if hidden is None else hidden
    if layers < 1 or encoder_layers < 1 or hidden < head or hidden % head:
        raise InvalidRequest(
            f"cannot create a draft with {encoder_layers} and {layers} layers and "
            f"hidden size {hidden}: it needs one "
            f"layer of each kind or more, and a hidden size in multiples of {head}, "
            "the target's for one head"
        )
    sizes = (
        dict.fromkeys(DECODER_LAYERS, layers)
        | dict.fromkeys(ENCODER_LAYERS, encoder_layers)
        | {"d_model": hidden}
    )
    sizes |= dict.fromkeys(heads, hidden // head)
    sizes |= {
        name: max(8, round(getattr(config, name, 0) * hidden / before / 8) * 8)
        for name in INNER_SIZES
    }
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(result, name, size)
    return result
