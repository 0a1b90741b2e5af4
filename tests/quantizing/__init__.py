"""Checkpoints of 8 bits as compressed-tensors stores them: rows and their scales."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import tiny_models
from folders import configured
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights

SETTINGS = dict(
    quant_method="compressed-tensors", format="int-quantized", ignore=["lm_head"]
)


def saved(name: str, folder: Path) -> Path:
    """Write a tiny model in bfloat16; mistral3 reads images too. Returns the folder."""
    model = tiny_models.mistral3() if name == "mistral3" else tiny_models.build(name)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return load_weights(folder, read_config(folder), dtype).eval()


def weights_of(folder: Path, plain: dict[str, Tensor], model: str) -> PreTrainedModel:
    """The plain model with these weights."""
    held = {name: tensor.float().contiguous() for name, tensor in plain.items()}
    save_file(held, saved(model, folder) / "model.safetensors", {"format": "pt"})
    return loaded(folder)


def int8(folder: Path, kind: torch.dtype = torch.int8) -> dict[str, Tensor]:
    """Quantize a saved model's projections, to E4M3 if that is the kind; return the
    plain weights by name.
    """
    most = 127 if kind == torch.int8 else 448
    tensors = load_file(folder / "model.safetensors")
    plain = dict(tensors)
    for name in [
        name
        for name in tensors
        if name.endswith("_proj.weight") and tensors[name].dim() == 2
    ]:
        weight = tensors.pop(name).float()
        scale = (weight.abs().amax(1, keepdim=True) / most).bfloat16()
        codes = weight / scale.float()
        codes = codes.round() if kind == torch.int8 else codes
        codes = codes.clamp(-most, most).to(kind)
        tensors |= {name: codes, f"{name}_scale": scale}
        plain[name] = codes.float() * scale.float()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    configured(folder, quantization_config=SETTINGS)
    return plain


def mxfp4(folder: Path) -> Path:
    """Write a tiny gpt-oss with random MXFP4 experts. Returns the folder."""
    tensors = load_file(saved("gpt-oss", folder) / "model.safetensors")
    noise = torch.Generator().manual_seed(0)
    for name in [
        name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))
    ]:
        experts, depth, outputs = tensors.pop(name).shape
        blocks = (experts, outputs, depth // 32, 16)
        tensors[f"{name}_blocks"] = torch.randint(
            256, blocks, dtype=torch.uint8, generator=noise
        )
        tensors[f"{name}_scales"] = torch.randint(
            122, 126, blocks[:3], dtype=torch.uint8, generator=noise
        )
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return configured(folder, quantization_config=dict(quant_method="mxfp4"))


def requantized(folder: Path, **settings: object) -> Path:
    """The folder, entries of its quantization_config changed."""
    before = read_config(folder).quantization_config
    return configured(folder, quantization_config=before | settings)


def shard(folder: Path, files: int) -> None:
    """Distribute the tensors of a checkpoint over files, a matrix over several."""
    tensors = load_file(folder / "model.safetensors")
    names = [f"model-{number}.safetensors" for number in range(files)]
    places = {
        name: names[position % files] for position, name in enumerate(sorted(tensors))
    }
    for file in names:
        save_file(
            {name: tensors[name] for name, place in places.items() if place == file},
            folder / file,
        )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": places}), encoding="utf-8"
    )
    (folder / "model.safetensors").unlink()
