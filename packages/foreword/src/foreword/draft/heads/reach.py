"""Keys that the rows of a block attend to: windows, and rows of the block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from foreword.errors import ModelError

TYPES = FULL, SLIDING = ("full_attention", "sliding_attention")
CAUSAL = ("is_causal", "causal", "causal_head")
"""Keys for all layers, the first has priority: vLLM and SGLang, vLLM, JetSpec."""
BOTH_WAYS = "sliding_window_non_causal"
"""Key of speculators, for layers with a window; its others attend both ways."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Keys that block rows attend to in each layer."""

    windows: tuple[int, ...] = ()
    """Tokens up to a row itself that it attends to, by layer; 0 or missing: all."""
    causal: bool | None = False
    """Rows attend to earlier rows of the block only; None: in layers with a window."""

    @classmethod
    def of(
        cls, config: Mapping[str, Any], about: Mapping[str, Any], source: str
    ) -> "Reach":
        """Read config.json; `about`: the part of it that describes the layers.

        Raises ModelError where a layer has no known type, or no window size.
        """
        count: int = about["num_hidden_layers"]
        types = about.get("layer_types") or [FULL] * count
        if not about.get("layer_types") and about.get("use_sliding_window"):
            first = about.get("max_window_layers", 28)
            types = [TYPES[layer >= first] for layer in range(count)]
        if config.get("use_swa") and SLIDING not in types:
            types = [SLIDING] * count
        size = config.get("swa_window_size") or about.get("sliding_window")
        sized = SLIDING not in types or (type(size) is int and size > 0)
        if len(types) != count or set(types) - set(TYPES) or not sized:
            raise ModelError(
                f"cannot load {source}: the sliding window of its {count} layers is "
                f"unknown, as config.json has layer_types {types} and sliding_window "
                f"{size}. Correct config.json"
            )
        windows = tuple(size if kind == SLIDING else 0 for kind in types)
        windows = windows if any(windows) else ()
        kind = config.get("speculators_model_type")
        if kind is not None:
            both_ways = config.get(BOTH_WAYS, kind == "dflash2")
            return cls(windows, None if windows and not both_ways else False)
        set_by = next((key for key in CAUSAL if config.get(key) is not None), None)
        causal = None if windows else False
        return cls(windows, causal if set_by is None else bool(config[set_by]))

    @property
    def ordinary(self) -> bool:
        """Whether every row attends to the whole text and its block."""
        return not self.windows and not self.causal

    @property
    def fits_c(self) -> bool:
        """Whether C computes it: causal in all layers, or both ways without windows."""
        causal = all(self.windows) if self.causal is None else self.causal
        return self.ordinary or causal

    def as_config(self) -> dict[str, Any]:
        """Return the keys of flat configs; none for an ordinary reach."""
        windows: dict[str, Any] = {}
        if self.windows:
            windows = {
                "layer_types": [TYPES[size > 0] for size in self.windows],
                "sliding_window": max(self.windows),
                "use_sliding_window": True,
            }
        by_default = self.causal is None or self.ordinary
        return windows if by_default else {**windows, "is_causal": self.causal}

    def mask(
        self, layer: int, rows: int, keys: int, device: torch.device
    ) -> Bool[Tensor, "rows keys"] | None:
        """Return the keys that the last `rows` tokens attend to; None for all."""
        window = self.windows[layer] if self.windows else 0
        causal = window > 0 if self.causal is None else self.causal
        if not window and not causal:
            return None
        key = torch.arange(keys, device=device)
        distances = key[-rows:, None] - key
        seen = distances < (window or keys)
        return seen & (distances >= 0) if causal else seen


EVERYTHING = Reach()
"""Every row attends to the whole text and its block."""
