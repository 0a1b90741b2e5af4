"""A head that fills in a block of masked tokens from hidden states of the target (arXiv 2602.06036).

Knows its layers, its memory and what checkpoints say of it; knows nothing about how guesses are read from a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.block import fitting
from foreword.draft.parcel import FOLDER, SGLANG, SPECULATORS, VERSION, VLLM, Parcel, proposals, sglang, vllm
from foreword.errors import ModelError
from foreword.model.checkpoint import Checkpoint
from foreword.model.layer import Attend, Layer, Qwen3Config, Rotary, as_config, norm, sizes
from foreword.model.parts import HFConfig

SHARED = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of the target that some checkpoints repeat."""
TENSORS = (
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    *(
        f"{norm}.weight"
        for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    ),
)
"""Those of a layer that other engines look for."""
Memory = tuple[Float[Tensor, "rows kv dim"], Float[Tensor, "rows kv dim"]]
"""Keys and values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a head is made of, besides its weights."""

    sizes: Qwen3Config
    states: tuple[int, ...]
    """Hidden states of the target that it hears, numbered as transformers does."""
    block: int
    """Rows of a block: the last committed token, then masks."""
    mask: int
    """The token that stands for one not known yet."""
    anchored: bool
    """The first row says what comes next; else it is the second, and the first says nothing."""
    depth: int = 0
    """Layers of the target; 0 = not known."""

    @property
    def guesses(self) -> int:
        return self.block if self.anchored else self.block - 1

    @classmethod
    def of(cls, config: Mapping[str, Any], source: str, *, anchored: bool) -> Layout:
        """From config.json, flat or in the layout of speculators; `anchored` is meant where it does not say.

        Raises ModelError where something is missing or cannot be.
        """
        said = {**config, **(config.get("dflash_config") or {})}
        foreign = "speculators_model_type" in config
        made = sizes(config.get("transformer_layer_config") or {} if foreign else config, source)
        heard = "aux_hidden_state_layer_ids" if foreign else "target_layer_ids"
        if missing := [name for name in (heard, "mask_token_id", "block_size") if said.get(name) is None]:
            raise ModelError(f"{source}: config.json does not say {', '.join(missing)}")
        mask, block = said["mask_token_id"], said["block_size"]
        if not 0 <= mask < made.vocab_size or block < 2:
            raise ModelError(
                f"{source}: mask_token_id must be one of {made.vocab_size} tokens and block_size at least 2, "
                f"got {mask} and {block}"
            )
        # Flat configs count what layers put out, transformers what they read.
        states = tuple(layer if foreign else layer + 1 for layer in said[heard])
        found = bool(said.get("sample_from_anchor", anchored))
        return cls(made, states, block, mask, found, said.get("num_target_layers") or 0)

    @property
    def outputs(self) -> list[int]:
        """The hidden states as flat configs count them."""
        return [layer - 1 for layer in self.states]

    def as_config(self) -> dict[str, Any]:
        """What flat configs have in common."""
        known = {"model_type": "qwen3", "tie_word_embeddings": False, **as_config(self.sizes)}
        return {**known, "block_size": self.block, "num_target_layers": self.depth}


class MaskedHead(nn.Module):
    """Layers over a block whose rows see each other and, as further keys and values, what the target thought before.

    The names of its tensors are those of published checkpoints.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        config = layout.sizes
        self.fc = nn.Linear(len(layout.states) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm, self.norm = norm(config.hidden_size, config), norm(config.hidden_size, config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.rotary = Rotary(config)

    def remembered(self, states: Float[Tensor, "rows features"], positions: Int[Tensor, "rows"]) -> list[Memory]:
        """Keys and values, for each layer, of tokens that the target has read."""
        context = self.hidden_norm(self.fc(states))
        angles = self.rotary(context, positions)
        return [layer.self_attn.remembered(context, angles) for layer in self._stack]

    def forward(
        self, x: Float[Tensor, "rows hidden"], positions: Int[Tensor, "rows"], attend: Attend
    ) -> Float[Tensor, "rows hidden"]:
        """Embeddings of the rows of blocks -> normed hidden states, for the target's head."""
        angles = self.rotary(x, positions)
        for number, layer in enumerate(self._stack):
            x = layer(number, x, angles, attend)
        return self.norm(x)

    @property
    def _stack(self) -> Iterable[Layer]:
        return cast("Iterable[Layer]", self.layers)


def packed(
    head: MaskedHead, flat: Checkpoint, about: Mapping[str, Any], target: HFConfig, engine: str, own: Iterable[str] = ()
) -> Parcel:
    """A head for another engine. Raises ModelError where it is of another target.

    flat: what those get who read flat layouts. about: what the kind adds to the layout of speculators, its name among
    it. own: its tensors besides those that all such heads have.
    """
    layout, method = head.layout, about["speculators_model_type"]
    sizes = layout.sizes
    fitting(flat.source, target, vocab=sizes.vocab_size, hidden=sizes.hidden_size)
    listed = {
        **about,
        "speculators_version": VERSION,
        "speculators_config": proposals(method, layout.guesses, target),
        "transformer_layer_config": {"model_type": "qwen3", **as_config(sizes)},
        "draft_vocab_size": sizes.vocab_size,
        "block_size": layout.block,
        "aux_hidden_state_layer_ids": list(layout.states),
        "mask_token_id": layout.mask,
        "sample_from_anchor": layout.anchored,
        "tie_word_embeddings": False,
    }
    made = Checkpoint(flat.source, listed, flat.tensors) if engine == SPECULATORS else flat
    start = {
        VLLM: vllm(method, layout.guesses),
        SGLANG: sglang(method.upper()),
        SPECULATORS: ("vllm", "serve", FOLDER),
    }
    inner = (f"layers.{layer}.{part}" for layer in range(sizes.num_hidden_layers) for part in TENSORS)
    names = frozenset(("fc.weight", "hidden_norm.weight", "norm.weight", *inner, *own))
    return Parcel(write=made.write, names=names, start=start[engine])


def fill(head: MaskedHead, found: Checkpoint) -> None:
    """Give a head the weights of a checkpoint. Raises ModelError where they are not its own, all of them."""
    if "d2t" in found.tensors:
        raise ModelError(f"{found.source} guesses in a reduced vocabulary, which this method does not support")
    own = {name: tensor for name, tensor in found.tensors.items() if name not in SHARED}
    Checkpoint(found.source, found.config, own).fill(head)
