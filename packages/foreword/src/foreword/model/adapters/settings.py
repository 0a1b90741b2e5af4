"""Settings of a PEFT adapter; only low-rank pairs beside linear layers are accepted."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.errors import ModelError, words

CONFIG = "adapter_config.json"
READ = (
    "alpha_pattern",
    "lora_alpha",
    "r",
    "rank_pattern",
    "target_modules",
    "use_rslora",
)
"""Settings that decide what an adapter computes."""
NARROWING = ("exclude_modules", "layers_to_transform", "layers_pattern")
"""Settings that take layers out of `target_modules`; the weights say which are left."""
UNUSED = (
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
)
"""Settings of training, or of another setting that is refused."""
EXPECTED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
"""Values of settings that have a harmless one; other ways to begin a training change
the weights of the model too.
"""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The rank and the scale of each pair, and the layers that have one."""

    rank: int
    alpha: float
    by_root: bool
    """Whether the scale is alpha / sqrt(rank), as rsLoRA's, not alpha / rank."""
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    """Ranks and alphas by pattern, for layers whose names end with it."""
    targets: str | tuple[str, ...]
    """Ends of the names of layers that have a pair, or an expression of whole names."""
    narrowed: bool
    """Whether some of these layers have none."""

    def rank_of(self, layer: str) -> int:
        """Return the rank of a layer's pair."""
        return self.ranks.get(_pattern(self.ranks, layer), self.rank)

    def scale_of(self, layer: str) -> float:
        """Return the factor of what a layer's pair computes."""
        alpha = self.alphas.get(_pattern(self.alphas, layer), self.alpha)
        rank = self.rank_of(layer)
        return alpha / (math.sqrt(rank) if self.by_root else rank)

    def needs(self, layer: str) -> bool:
        """Return whether a linear layer must have a pair."""
        if self.narrowed:
            return False
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, layer) is not None
        return any(f".{layer}".endswith(f".{target}") for target in self.targets)


def read_settings(folder: Path) -> LoraSettings:
    """Return the settings of a folder.

    Raises ModelError where they are missing, no settings of LoRA, or ask for more than
    is read.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refusal(folder, f"{CONFIG} cannot be read ({words(error)})") from error
    if not isinstance(values, dict):
        raise refusal(folder, f"{CONFIG} holds no settings")
    _check_plain(folder, values)
    try:
        return _parsed(values)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise refusal(folder, f"{CONFIG} is damaged ({error!r})") from error


def refusal(folder: Path, reason: str) -> ModelError:
    """Return the error of an adapter that cannot be used."""
    return ModelError(
        f"cannot use the adapter in {folder}: {reason}. Give the folder of a LoRA "
        "adapter of linear layers, as PEFT saves it, or merge it into the model"
    )


def _check_plain(folder: Path, values: Mapping[str, Any]) -> None:
    """Raise ModelError for a setting whose effect is not computed."""
    for name, allowed in EXPECTED.items():
        value = values.get(name, allowed[0])
        if value not in allowed:
            raise refusal(folder, f"its {name!r} is {value!r}")
    for name, value in values.items():
        known = name in EXPECTED or name in (*READ, *NARROWING, *UNUSED)
        if value and not known:
            raise refusal(folder, f"its {name!r} is {value!r}, which is not supported")


def _parsed(values: Mapping[str, Any]) -> LoraSettings:
    targets = values["target_modules"]
    ranks = values.get("rank_pattern") or {}
    alphas = values.get("alpha_pattern") or {}
    settings = LoraSettings(
        rank=int(values["r"]),
        alpha=float(values["lora_alpha"]),
        by_root=bool(values.get("use_rslora")),
        ranks={name: int(rank) for name, rank in ranks.items()},
        alphas={name: float(alpha) for name, alpha in alphas.items()},
        targets=targets if isinstance(targets, str) else tuple(targets),
        narrowed=any(values.get(name) for name in NARROWING),
    )
    patterns = [*ranks, *alphas]
    if isinstance(targets, str):
        patterns.append(targets)
    for pattern in patterns:
        re.compile(pattern)
    if min([settings.rank, *settings.ranks.values()]) < 1:
        raise ValueError("a rank is below 1")
    return settings


def _pattern(patterns: Mapping[str, object], layer: str) -> str:
    """Return the first pattern that ends a layer's name, as in PEFT, or the name."""
    return next(
        (one for one in patterns if re.match(rf"(.*\.)?({one})$", layer)), layer
    )
