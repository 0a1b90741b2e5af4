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
"""Key of speculators for layers with a window; its others attend both ways."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Keys that block rows attend to in each layer."""

    layers: tuple[tuple[int, bool], ...] = ()
    """The tokens up to a row itself that it attends to, 0 = all, and whether it attends
    to earlier rows of the block only. Empty: to all in every layer.
    """

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        about: Mapping[str, Any],
        source: str,
    ) -> "Reach":
        """Read config.json; `about`: the part of it that describes the layers.

        Raises ModelError where a layer has no known type, or no window size.
        """
        count: int = about["num_hidden_layers"]
        types = about.get("layer_types")
        if not types:
            first = count
            if about.get("use_sliding_window"):
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
        both_ways = config.get("speculators_model_type") == "dflash2"
        both_ways = config.get(BOTH_WAYS, both_ways)
        values = (config[key] for key in CAUSAL if config.get(key) is not None)
        causal = False if both_ways else next(values, None)
        layers: list[tuple[int, bool]] = []
        for name in types:
            window = int(size or 0) if name == SLIDING else 0
            layers.append((window, window > 0 if causal is None else bool(causal)))
        return cls(tuple(layers) if any(map(any, layers)) else ())

    @property
    def ordinary(self) -> bool:
        """Whether every row attends to the whole text and its block."""
        return not self.layers

    @property
    def in_order(self) -> bool:
        """Whether rows attend to earlier rows only, in every layer."""
        return bool(self.layers) and all(causal for _, causal in self.layers)

    def as_config(self) -> dict[str, Any]:
        """Return the keys of flat configs."""
        if self.ordinary:
            return {}
        windows = [window for window, _ in self.layers]
        usual = all(causal == (window > 0) for window, causal in self.layers)
        return {
            "layer_types": [TYPES[window > 0] for window in windows],
            "sliding_window": max(windows) or None,
            "use_sliding_window": any(windows),
            "is_causal": None if usual else self.in_order,
        }

    def mask(
        self,
        layer: int,
        rows: int,
        keys: int,
        device: torch.device,
    ) -> Bool[Tensor, "rows keys"] | None:
        """Return the keys that the last `rows` tokens attend to; None for all."""
        if self.ordinary:
            return None
        window, causal = self.layers[layer]
        key = torch.arange(keys, device=device)
        distances = key[-rows:, None] - key
        seen = distances < (window or keys)
        return seen & (distances >= 0) if causal else seen
