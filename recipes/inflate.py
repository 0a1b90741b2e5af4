"""Write the bundled target, enlarged, as a checkpoint, for benchmarks that need a model
on disk.

It writes the same text as the bundled target, up to rounding, at the cost of a model of
that size (`foreword bench --inflate` does the same in memory). Added layers are written
one by one, so llama-8b (15 GB) needs 5 GB of memory:

    python recipes/inflate.py llama-8b models/llama-8b foreword bench --model
    models/llama-8b --draft DRAFT --weights int4 --offload-folder weights --method lm
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from foreword import bundled
from foreword_lab.bench.inflate.model import SHAPES, inflate

CONTEXT = 2048
"""Tokens."""
INDEX = "model.safetensors.index.json"
SHARD = "50MB"
"""Largest file of the first layers, so that there are several and an index."""
READS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Matrices of an added layer that are random; those that write to the residual stream
are zero but for one number.
"""
TINY = 2.0**-100
"""It adds nothing to a state, and shows that the matrix is there: a matrix of zeros is
refused as one that was cut off.
"""


def main(name: str, out: Path) -> None:
    """Write the checkpoint."""
    shape = SHAPES[name]
    small = LlamaForCausalLM.from_pretrained(bundled.target(), dtype=torch.bfloat16)
    kept = small.config.num_hidden_layers
    large = inflate(small, replace(shape, layers=kept), context=CONTEXT)
    large.save_pretrained(out, max_shard_size=SHARD)
    AutoTokenizer.from_pretrained(bundled.target()).save_pretrained(out)
    layer = {
        part: weight.shape
        for part, weight in large.model.layers[0].state_dict().items()
    }
    del large
    index = json.loads((out / INDEX).read_text(encoding="utf-8"))
    for number in range(kept, shape.layers):
        tensors = {
            f"model.layers.{number}.{part}": _weight(part, size)
            for part, size in layer.items()
        }
        file = f"layer-{number}.safetensors"
        save_file(tensors, out / file, metadata={"format": "pt"})
        index["weight_map"] |= dict.fromkeys(tensors, file)
        sys.stdout.write(f"layer {number + 1} of {shape.layers}\n")
    (out / INDEX).write_text(json.dumps(index), encoding="utf-8")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = shape.layers
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _weight(part: str, size: torch.Size) -> torch.Tensor:
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    if any(name in part for name in READS):
        return torch.randn(size, dtype=torch.bfloat16) * 0.02
    weight = torch.zeros(size, dtype=torch.bfloat16)
    weight[0, 0] = TINY
    return weight


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: python recipes/inflate.py {'|'.join(SHAPES)} FOLDER")
    main(sys.argv[1], Path(sys.argv[2]))
