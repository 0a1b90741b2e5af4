"""Writes those folders of `recorded/` that hold floating-point numbers of 8 and 4 bits,
with record.py, whose packages this needs too. Run once, by hand:

    pip install --no-deps nvidia-modelopt==0.47.0 omegaconf antlr4-python3-runtime==4.9.3
        pulp nvidia-ml-py scipy
    python tests/model/quantized/record_floats.py
"""

import json

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from record import HERE, Parts, by_matrix
from torch import Tensor, nn

LARGEST = {8: 448.0, 4: 6.0}
"""Largest numbers of E4M3 and E2M1, by their bits."""
BLOCK = [48, 40]
"""Divides neither side of a matrix."""


def scheme(**weights: object) -> QuantizationScheme:
    args = QuantizationArgs(type="float", symmetric=True, **weights)
    return QuantizationScheme(targets=["Linear"], weights=args)


def tops(weight: Tensor, args: QuantizationArgs) -> Tensor:
    """The largest number of each block or group."""
    sizes = args.block_structure or [1, args.group_size]
    rows = [part.abs() for part in weight.split(sizes[0])]
    parts = [[one.max() for one in row.split(sizes[1], 1)] for row in rows]
    return torch.tensor(parts)


def compressed(folder: str, kind: str, how: QuantizationScheme) -> None:
    args = how.weights

    def quantize(layer: nn.Linear) -> Parts:
        weight = layer.weight.detach().clone()
        scale = tops(weight, args) / LARGEST[args.num_bits]
        held = {"weight": weight}
        if kind.startswith("nvfp4"):
            held["weight_global_scale"] = 448 / scale.max().reshape(1)
            scale = (scale * held["weight_global_scale"]).to(torch.float8_e4m3fn)
        if kind.startswith("mxfp4"):
            scale = scale.log2().ceil().exp2()
        held["weight_scale"] = scale.float()
        stored = BaseCompressor.get_value_from_registry(kind).compress(held, how)
        codes = stored.get("weight")
        if codes is None:
            packed = stored["weight_packed"]
            codes = unpack_fp4_from_uint8(packed, *weight.shape, torch.float32)
        return stored, dequantize(
            codes,
            scale.float(),
            args=args,
            global_scale=held.get("weight_global_scale"),
            dtype=torch.float32,
        )

    settings = dict(
        quant_method="compressed-tensors",
        format=kind,
        config_groups={"group_0": json.loads(how.model_dump_json())},
        ignore=["lm_head"],
        quantization_status="compressed",
    )
    by_matrix(folder, torch.bfloat16, settings, quantize)


def modelopt(folder: str, algorithm: str) -> None:
    """One names its settings in a file of their own."""

    def fp4(layer: nn.Linear) -> Parts:
        weight = layer.weight.detach()
        packed, scale, factor = NVFP4QTensor.quantize(weight, 16)
        dense = packed.dequantize(
            torch.float32, scale=scale, double_scale=factor, block_sizes={-1: 16}
        )
        parts = dict(weight=packed._quantized_data, weight_scale=scale)
        return {**parts, "weight_scale_2": factor, **inputs()}, dense

    def fp8(layer: nn.Linear) -> Parts:
        codes, scale = FP8QTensor.quantize(layer.weight.detach())
        dense = codes.dequantize(torch.float32, scale=scale)
        parts = dict(weight=codes._quantized_data, weight_scale=scale.squeeze())
        return {**parts, **inputs()}, dense

    quantize = fp4 if algorithm == "NVFP4" else fp8
    settings = dict(quant_algo=algorithm, kv_cache_quant_algo="FP8")
    own = dict(quant_method="modelopt", **settings)
    by_matrix(folder, torch.bfloat16, own, quantize)
    if algorithm == "NVFP4":
        path = HERE / folder / "config.json"
        config = json.loads(path.read_text())
        del config["quantization_config"]
        path.write_text(json.dumps(config, indent=2) + "\n")
        producer = dict(name="modelopt", version="0.47.0")
        content = dict(producer=producer, quantization=settings)
        path = HERE / folder / "hf_quant_config.json"
        path.write_text(json.dumps(content, indent=2) + "\n")


def inputs() -> dict[str, Tensor]:
    """Scales of activations, and of keys and values; they stand beside each matrix."""
    return {name: torch.tensor(0.5) for name in ("input_scale", "k_scale")}


if __name__ == "__main__":
    block = scheme(num_bits=8, strategy="block", block_structure=BLOCK)
    compressed("compressed-fp8", "float-quantized", block)
    groups = scheme(num_bits=4, strategy="tensor_group", group_size=16)
    compressed("compressed-nvfp4", "nvfp4-pack-quantized", groups)
    powers = scheme(num_bits=4, strategy="group", group_size=32)
    compressed("compressed-mxfp4", "mxfp4-pack-quantized", powers)
    modelopt("modelopt-nvfp4", "NVFP4")
    modelopt("modelopt-fp8", "FP8")
