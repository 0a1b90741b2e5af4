"""The head that fills in a block of masked tokens from the target's hidden states
(arXiv 2602.06036).

Provides its layers, its config and its export to other engines.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.export_layout import (
    LAYER_TENSORS,
    SPECULATORS,
    VERSION,
    ExportLayout,
    command,
    proposals,
    unsupported_engine,
)
from foreword.draft.heads.loading import (
    TRAINING_ONLY,
    TrainedHead,
    check_fits,
    check_kind,
    check_tokens,
)
from foreword.draft.heads.reach import Reach
from foreword.errors import ModelError
from foreword.model.head_layers import (
    SIDES,
    Attend,
    HFConfig,
    Layer,
    Qwen3Config,
    Rotary,
    as_config,
    norm,
    sizes,
)
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import HEAD_METHODS

LAYERS = "num_hidden_layers"
SHARED = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of the target that some checkpoints duplicate."""
VOCABULARY = ("d2t", "t2d")
"""Offsets from a draft-vocabulary index to the target's token id, and a mask of the
target's tokens it has.
"""
TENSORS = (*LAYER_TENSORS, "self_attn.q_norm.weight", "self_attn.k_norm.weight")
"""Tensors of a layer that other engines require."""
MOST_ROWS = 256
"""Most rows of a block: logits over the vocabulary are held for each row. Published
heads have 16 at most.
"""
Memory = tuple[Float[Tensor, "rows kv dim"], Float[Tensor, "rows kv dim"]]
"""Keys and values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Config of a head."""

    sizes: Qwen3Config
    states: tuple[int, ...]
    """Target hidden states that the head reads, numbered as in transformers."""
    block: int
    """Rows of a block: the last committed token, then masks."""
    mask: int
    """Mask token id."""
    sample_from_anchor: bool
    """Whether the first row predicts the next token, and not the second."""
    depth: int = 0
    """Layers of the target; 0 = unknown."""
    draft_vocab: int = 0
    """Tokens that the head's own LM head knows; 0 = it uses the target's."""
    reach: Reach = field(default_factory=Reach)

    @property
    def draft_tokens(self) -> int:
        return self.block if self.sample_from_anchor else self.block - 1

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, sample_from_anchor: bool) -> "Layout":
        """Parse config.json, flat or in the layout of speculators; `sample_from_anchor`
        is the default.

        Raises ModelError where a key is missing, invalid, or larger than the tensors
        are.
        """
        config, source = checkpoint.config, checkpoint.source
        merged = entries(config)
        _check_projector(merged, source)
        speculators = "speculators_model_type" in config
        about = config.get("transformer_layer_config") or {} if speculators else config
        _check_sizes(checkpoint, about)
        layer_config = sizes(about, source)
        ids = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
        needed = (ids, "mask_token_id", "block_size")
        if not speculators and ids not in merged:
            depth, layers = merged.get("num_target_layers"), about[LAYERS]
            merged[ids] = default_layers(depth, layers) if depth else None
        if missing := [name for name in needed if merged.get(name) is None]:
            raise ModelError(
                f"cannot load {source}: config.json has no {', '.join(missing)}. Add it"
            )
        mask, block = merged["mask_token_id"], merged["block_size"]
        whole = type(mask) is int and type(block) is int
        if (
            not whole
            or not 0 <= mask < layer_config.vocab_size
            or not 2 <= block <= MOST_ROWS
        ):
            raise ModelError(
                f"cannot load {source}: in its config.json, mask_token_id is {mask} "
                f"and block_size {block}. mask_token_id must be one of "
                f"{layer_config.vocab_size} tokens and block_size 2 to {MOST_ROWS}"
            )
        # Flat configs number the outputs of layers, transformers their inputs.
        states = tuple(layer if speculators else layer + 1 for layer in merged[ids])
        first_row = bool(merged.get("sample_from_anchor", sample_from_anchor))
        return cls(
            layer_config,
            states,
            block,
            mask,
            first_row,
            merged.get("num_target_layers") or 0,
            _draft_vocab(checkpoint, layer_config.vocab_size),
            Reach.of(merged, about, source),
        )

    @property
    def outputs(self) -> list[int]:
        """Hidden states as flat configs number them."""
        return [layer - 1 for layer in self.states]

    def as_config(self) -> dict[str, Any]:
        """Return the keys shared by all flat configs."""
        reduced = {"draft_vocab_size": self.draft_vocab} if self.draft_vocab else {}
        return {
            "model_type": "qwen3",
            "tie_word_embeddings": False,
            **as_config(self.sizes),
            **reduced,
            **self.reach.as_config(),
            "block_size": self.block,
            "num_target_layers": self.depth,
        }


Head = TypeVar("Head", bound="MaskedHead")


class MaskedHead(TrainedHead, nn.Module):
    """Layers whose block rows attend to each other and to keys and values from the
    target's hidden states.

    Tensor names are as in published checkpoints.
    """

    METHOD: ClassVar[str]
    ARCHITECTURES: ClassVar[tuple[str, ...]]
    """Names in flat configs; the first is written."""
    SPECULATOR: ClassVar[str]
    """Architecture in the layout of speculators."""
    FIRST_ROW: ClassVar[bool]
    """Whether the first row predicts a token, unless a config says otherwise; engines
    but speculators read no such config.
    """
    embedding_scale = 1.0
    """Factor of the embeddings of block rows."""
    EXTRAS: ClassVar[tuple[str, ...]] = ()
    """Keys of the flat config that speculators takes over."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        config = layout.sizes
        self.hidden_size, self.vocab = config.hidden_size, config.vocab_size
        self.target_layers = layout.depth
        self.fc = nn.Linear(
            len(layout.states) * config.hidden_size, config.hidden_size, bias=False
        )
        self.hidden_norm = norm(config.hidden_size, config)
        self.norm = norm(config.hidden_size, config)
        self.layers = nn.ModuleList(
            Layer(config) for _ in range(config.num_hidden_layers)
        )
        self.rotary = Rotary(config)
        self.lm_head: nn.Linear | None = None
        if layout.draft_vocab:
            vocab = layout.draft_vocab
            self.lm_head = nn.Linear(config.hidden_size, vocab, bias=False)
            self.register_buffer("d2t", torch.zeros(vocab, dtype=torch.int64))
            mask = torch.zeros(config.vocab_size, dtype=torch.bool)
            self.register_buffer("t2d", mask)

    @classmethod
    def read(cls: type[Head], checkpoint: Checkpoint) -> Head:
        """Load a flat or speculators checkpoint.

        A map of the vocabulary (`d2t`, `t2d`) may say that each token is itself; else
        it maps the tokens of the head's own LM head. Raises ModelError for another
        kind, or where tensors are missing or unexpected.
        """
        check_kind(checkpoint, cls.ARCHITECTURES, cls.METHOD)
        layout = Layout.of(checkpoint, sample_from_anchor=cls.FIRST_ROW)
        shared = SHARED[:1] if layout.draft_vocab else (*SHARED, *VOCABULARY)
        tensors = {
            name: tensor
            for name, tensor in checkpoint.tensors.items()
            if name not in (*TRAINING_ONLY, *shared)
        }
        head = cls.filled(replace(checkpoint, tensors=tensors), layout)
        if layout.draft_vocab:
            check_tokens(checkpoint.source, head.tokens, layout.sizes.vocab_size)
        return head

    @classmethod
    def filled(cls: type[Head], checkpoint: Checkpoint, layout: Layout) -> Head:
        """Return a head of this layout with the weights of a checkpoint."""
        return checkpoint.filled(partial(cls, layout))

    @abstractmethod
    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """Return the head in the flat layout."""

    @property
    def extra_tensors(self) -> tuple[str, ...]:
        """Names of the tensors that only this kind has."""
        return ()

    @classmethod
    def pack(
        cls, checkpoint: Checkpoint, target: HFConfig, engine: str
    ) -> ExportLayout:
        """Return a head for another engine.

        Raises ModelError where the head is for another target, InvalidRequest where the
        engine does not support it.
        """
        head = cls.read(checkpoint)
        layout, sizes = head.layout, head.layout.sizes
        if layout.sample_from_anchor != cls.FIRST_ROW and engine != SPECULATORS:
            which = "without" if cls.FIRST_ROW else "with"
            raise unsupported_engine(
                f"a head {which} sample_from_anchor ({checkpoint.source})",
                engine,
                (SPECULATORS,),
            )
        if not layout.reach.ordinary and engine == SPECULATORS:
            what = f"a head with sliding or causal layers ({checkpoint.source})"
            raise unsupported_engine(what, engine)
        check_fits(checkpoint.source, head, target)
        exported = replace(
            head.dump(checkpoint.tensors["fc.weight"].dtype), source=checkpoint.source
        )
        if engine == SPECULATORS:
            exported = replace(exported, config=head._speculators(exported, target))
        layers = product(range(sizes.num_hidden_layers), TENSORS)
        inner = (f"layers.{layer}.{part}" for layer, part in layers)
        reduced = (SHARED[1], *VOCABULARY) if layout.draft_vocab else ()
        outer = ("fc.weight", "hidden_norm.weight", "norm.weight")
        names = frozenset((*outer, *inner, *head.extra_tensors, *reduced))
        start = command(engine, cls.METHOD, layout.draft_tokens)
        return ExportLayout(write=exported.write, names=names, start=start)

    def _speculators(self, flat: Checkpoint, target: HFConfig) -> dict[str, Any]:
        """Return the config of the head in the layout of speculators."""
        layout, sizes = self.layout, self.layout.sizes
        return {
            "architectures": [self.SPECULATOR],
            "speculators_model_type": self.METHOD,
            **{name: flat.config[name] for name in self.EXTRAS},
            "speculators_version": VERSION,
            "speculators_config": proposals(self.METHOD, layout.draft_tokens, target),
            "transformer_layer_config": {"model_type": "qwen3", **as_config(sizes)},
            "draft_vocab_size": layout.draft_vocab or sizes.vocab_size,
            "block_size": layout.block,
            "aux_hidden_state_layer_ids": list(layout.states),
            "mask_token_id": layout.mask,
            "sample_from_anchor": layout.sample_from_anchor,
            "tie_word_embeddings": False,
        }

    @property
    def tokens(self) -> Int[Tensor, "draft_vocab"]:
        """Target ids of a reduced vocabulary."""
        offsets = cast("Tensor", self.d2t)
        return torch.arange(len(offsets), device=offsets.device) + offsets

    def remembered(
        self, states: Float[Tensor, "rows features"], positions: Int[Tensor, "rows"]
    ) -> list[Memory]:
        """Return each layer's keys and values of tokens that the target has read."""
        context = self.hidden_norm(self.fc(states))
        angles = self.rotary(context, positions)
        return [layer.self_attn.remembered(context, angles) for layer in self._stack]

    def forward(
        self,
        x: Float[Tensor, "rows hidden"],
        positions: Int[Tensor, "rows"],
        attend: Attend,
    ) -> Float[Tensor, "rows hidden"]:
        """Map embeddings of block rows to normed hidden states for the LM head."""
        angles = self.rotary(x, positions)
        for number, layer in enumerate(self._stack):
            x = layer(number, x, angles, attend)
        return self.norm(x)

    @property
    def _stack(self) -> Iterable[Layer]:
        return cast("Iterable[Layer]", self.layers)


def entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config, and the ones nested in `dflash_config`."""
    return {**config, **(config.get("dflash_config") or {})}


def default_layers(depth: int, count: int) -> list[int]:
    """Return the layers that flat configs mean where they list none: `count` of
    `depth`, evenly from the second to the third last (code of arXiv 2602.06036).
    """
    if count == 1:
        return [depth // 2]
    return [round(1 + place * (depth - 4) / (count - 1)) for place in range(count)]


def _check_projector(config: Mapping[str, Any], source: str) -> None:
    """Raise ModelError for a head with parts that no method here computes."""
    kind = config.get("projector_type")
    if kind is not None and kind not in HEAD_METHODS:
        raise ModelError(
            f"cannot load {source}: projector_type in its config.json is {kind!r}, "
            "which is not supported. Choose another head"
        )


def _draft_vocab(checkpoint: Checkpoint, vocab: int) -> int:
    """Return the size of a reduced vocabulary; 0 for the target's."""
    if _is_whole(checkpoint, vocab):
        return 0
    head = checkpoint.tensors.get(SHARED[1])
    if head is None or head.dim() != 2:
        raise ModelError(
            f"cannot load {checkpoint.source}: it has a reduced vocabulary (d2t) but "
            "no lm_head.weight. Choose a head with its own, or the whole vocabulary"
        )
    return len(head)


def _check_sizes(checkpoint: Checkpoint, about: Mapping[str, Any]) -> None:
    """Raise ModelError if a config's layers are larger, or more, than its tensors."""
    checkpoint.check_sides({name: about.get(name) for name in SIDES})
    layers = math.ceil(len(checkpoint.tensors) / len(TENSORS))
    checkpoint.check_most(
        LAYERS,
        about.get(LAYERS),
        layers,
        "the most layers that its tensors can make up",
    )


def _is_whole(checkpoint: Checkpoint, vocab: int) -> bool:
    """Return whether the draft vocabulary is the target's, token by token."""
    offsets, mask = (checkpoint.tensors.get(name) for name in VOCABULARY)
    every = mask is None or (len(mask) == vocab and bool(mask.bool().all()))
    return every and (
        offsets is None or (len(offsets) == vocab and not bool(offsets.any()))
    )
