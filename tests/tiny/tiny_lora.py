"""LoRA adapters with random weights, written by PEFT."""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

USUAL: dict[str, Any] = dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])


def save(
    model: PreTrainedModel, folder: Path, seed: int, size: float = 0.3, **settings: Any
) -> PeftModel:
    """Write an adapter of such weights; return the model with it, a copy."""
    config = LoraConfig(**USUAL | settings)
    noise = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(copy.deepcopy(model), config)
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.data = size * torch.randn(weight.shape, generator=noise)
        adapted.save_pretrained(str(folder))
    return adapted.eval()


def merged(adapted: PeftModel) -> PreTrainedModel:
    """Return a plain model with the adapter merged into its weights."""
    whole: Any = copy.deepcopy(adapted)
    return whole.merge_and_unload().eval()


def two(model: PreTrainedModel, home: Path) -> dict[str, Path]:
    """Write two slight adapters of the bundled target; return their folders."""
    save(model, home / "a", 1, 0.2)
    save(model, home / "b", 2, 0.1, r=16, target_modules="all-linear")
    return {"a": home / "a", "b": home / "b"}
