"""The layers of multi-token prediction, made of the target's own decoder layers
(DeepSeek-V3: arXiv 2412.19437, section 2.2).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.model.executors.torch.attention import NAME as ATTENTION

Rows = Float[Tensor, "batch row hidden"]


class MtpHead(nn.Module):
    """Layers that predict one token each beyond the target's next one.

    Row t of layer k reads the embedding of token t + 1 and a state: the first layer the
    target's at token t, layer k that of layer k - 1 in the row before. It predicts
    token t + 2. A single layer continues on its own states.
    """

    def __init__(self, model: Any) -> None:
        """`model`: transformers' `MtpModel`."""
        super().__init__()
        self._config = model.config
        self.layers: nn.ModuleList = model.layers
        self.norm = model.shared_post_norm if model.use_shared_post_norm else None
        """The norm of every output, where the layers have none."""
        kinds = model.config.layer_types if model.has_per_layer_rope else ()
        self.kinds = tuple(kinds)
        """The kind of attention of each layer, where the rotary embedding differs."""
        # not a submodule: the target owns it
        self._rotary = (model.rotary_emb,)
        self.attend_by(ATTENTION)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def block(self) -> Any:
        """The decoder layer of the first layer."""
        return self.layers[0].mtp_block

    @property
    def hidden(self) -> int:
        """Features of a state."""
        return self.layers[0].eh_proj.out_features  # type: ignore[union-attr,return-value]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def attend_by(self, name: str) -> None:
        """Compute attention by this function of transformers' AttentionInterface."""
        self._config._attn_implementation = name

    def forward(
        self,
        layer: int,
        embedded: Rows,
        states: Rows,
        positions: Int[Tensor, "batch row"],
        **attention: Any,
    ) -> Rows:
        """Return the states of one layer, after its last norm; the LM head and the next
        layer read them.

        `attention`: what the attention function of the layers is given.
        """
        # not by the layer's own forward, whose arguments differ between versions
        module: Any = self.layers[layer]
        parts = [module.enorm(embedded), module.hnorm(states)]
        hidden = module.mtp_block(
            module.eh_proj(torch.cat(parts, -1)),
            position_embeddings=self._angles(layer, embedded, positions),
            attention_mask=None,
            position_ids=positions,
            **attention,
        )
        norm = self.norm if module.post_norm is None else module.post_norm
        return hidden if norm is None else norm(hidden)

    def _angles(
        self, layer: int, embedded: Rows, positions: Int[Tensor, "batch row"]
    ) -> tuple[Tensor, Tensor] | None:
        (rotary,) = self._rotary
        if rotary is None:
            return None
        kind = {"layer_type": self.kinds[layer]} if self.kinds else {}
        return rotary(embedded, position_ids=positions, **kind)
