"""Writes `recorded/`: a tiny model, quantized and dequantized by the library of each
method. Run once, by hand:

    pip download --no-deps auto-gptq==0.7.1 autoawq==0.2.9 gptqmodel==7.7.0    # unpacked: they do not install here
    pip install --no-deps compressed-tensors==0.20.0 bitsandbytes==0.50.2
        torchao==0.18.0 loguru
    python tests/model/quantized/record.py AUTO_GPTQ AUTOAWQ GPTQMODEL    # the folders of their packages

Each folder holds a checkpoint as users find it, and expected.safetensors:
`weight.<name>`, two of the matrices that the library dequantizes, and `logits` of
`tokens`, of transformers' own loading where it reads the method on a CPU, else of the
model with dequantized weights. All are float32. No test imports this, and no test needs
those libraries.
"""

import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers as hf
from compressed_tensors.compressors import (
    IntQuantizationCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchao.quantization import (
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerGroup,
)
from torchao.quantization.quant_primitives import dequantize_affine

HERE = Path(__file__).parent / "recorded"
TOKENS = torch.arange(12).mul(5).remainder(64)[None]
NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj")
GROUP = 32
Parts = tuple[dict[str, Tensor], Tensor]


def model() -> hf.PreTrainedModel:
    torch.manual_seed(5)
    sizes = dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        vocab_size=64,
    )
    config = hf.LlamaConfig(
        **sizes,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def linears(whole: hf.PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    for name, layer in whole.model.named_modules():
        if isinstance(layer, nn.Linear):
            yield f"model.{name}", layer


@torch.no_grad()
def expect(folder: str, whole: hf.PreTrainedModel, weights: dict[str, Tensor]) -> None:
    kept = {f"weight.{name}": weights[name].float().contiguous() for name in NAMES}
    logits = whole(TOKENS).logits[0].float()
    save_file(
        {**kept, "tokens": TOKENS[0], "logits": logits},
        HERE / folder / "expected.safetensors",
    )


@torch.no_grad()
def by_matrix(
    folder: str,
    dtype: torch.dtype,
    settings: dict,
    quantize: Callable[[nn.Linear], Parts],
) -> None:
    """Quantize every matrix with a function that returns what is stored of it and its
    dequantized weight.
    """
    whole = model()
    dense, held = {}, {}
    for name, layer in linears(whole):
        parts, dense[name] = quantize(layer)
        held |= {
            f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()
        }
        layer.weight.copy_(dense[name])
    plain = whole.state_dict()
    names = [
        name
        for name in plain
        if name.removesuffix(".weight") not in dense and name != "lm_head.weight"
    ]
    for name in names:
        plain[name].copy_(plain[name].to(dtype))
        held[name] = plain[name].to(dtype).clone()
    whole.config.dtype = dtype
    whole.config.quantization_config = settings
    whole.config.architectures = ["LlamaForCausalLM"]
    whole.config.save_pretrained(HERE / folder)
    save_file(held, HERE / folder / "model.safetensors", {"format": "pt"})
    expect(folder, whole, dense)


def steps(weight: Tensor, bits: int, sym: bool) -> tuple[Tensor, Tensor]:
    """A scale and a zero point for each output and group, as GPTQ and AWQ
    choose them.
    """
    parts = weight.unflatten(1, (-1, GROUP))
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    if sym:
        high = torch.maximum(-low, high)
        low = -high
    scale = ((high - low) / (2**bits - 1)).half().float()
    zero = torch.full_like(scale, 2 ** (bits - 1)) if sym else (-low / scale).round()
    return scale, zero.clamp(1, 2**bits - 1)


def load_module(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gptq(package: Path) -> None:
    kind = load_module(
        "qlinear_cuda", package / "nn_modules/qlinear/qlinear_cuda.py"
    ).QuantLinear

    def quantize(layer: nn.Linear, bits: int, sym: bool, order: bool) -> Parts:
        packed = kind(bits, GROUP, layer.in_features, layer.out_features, False)
        scale, zero = steps(layer.weight, bits, sym)
        index = (
            packed.g_idx[torch.randperm(layer.in_features)] if order else packed.g_idx
        )
        half = nn.Linear(
            layer.in_features, layer.out_features, bias=False, dtype=torch.float16
        )
        half.weight.data = layer.weight.detach().half().clamp(-1, 1)
        packed.pack(half, scale.half(), zero, index)
        eye = torch.eye(layer.in_features, dtype=torch.float32)
        packed.scales = packed.scales.float()  # dequantizes in float32
        dense = packed(eye).T.float()
        packed.scales = packed.scales.half()
        return {
            part: getattr(packed, part)
            for part in ("qweight", "qzeros", "scales", "g_idx")
        }, dense

    for folder, bits, sym, order in (
        ("gptq-4", 4, True, False),
        ("gptq-4-asym", 4, False, False),
        ("gptq-8-asym", 8, False, False),
        ("gptq-4-act-order", 4, False, True),
        ("gptq-2", 2, True, False),
        ("gptq-3-asym", 3, False, False),
    ):
        settings = dict(
            quant_method="gptq", bits=bits, group_size=GROUP, sym=sym, desc_act=order
        )
        by_matrix(
            folder,
            torch.float16,
            settings,
            lambda layer, how=(bits, sym, order): quantize(layer, *how),
        )


def awq(package: Path) -> None:
    sys.modules["awq"] = types.ModuleType("awq")
    sys.modules["awq"].__path__ = []
    for name in ("awq.utils", "awq.utils.module", "awq.utils.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["awq.utils.module"].try_import = lambda name: (None, "not installed")
    sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"
    packing = load_module("awq.utils.packing_utils", package / "utils/packing_utils.py")
    sys.modules["awq.utils.packing_utils"] = packing
    kind = load_module("awq_gemm", package / "modules/linear/gemm.py").WQLinear_GEMM

    def quantize(layer: nn.Linear) -> Parts:
        scale, zero = (part.T.contiguous() for part in steps(layer.weight, 4, False))
        near = nn.Linear(layer.in_features, layer.out_features, bias=False)
        wide = [part.repeat_interleave(GROUP, 0).T for part in (scale, zero)]
        near.weight.data = layer.weight.detach().clamp(
            -wide[1] * wide[0], (15 - wide[1]) * wide[0]
        )
        packed = kind.from_linear(near, 4, GROUP, scales=scale, zeros=zero)
        parts = {
            part: getattr(packed, part) for part in ("qweight", "qzeros", "scales")
        }
        return parts, packing.dequantize_gemm(
            packed.qweight, packed.qzeros, packed.scales.float(), 4, GROUP
        ).T

    settings = dict(
        quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm"
    )
    by_matrix("awq", torch.float16, settings, quantize)


def compressed() -> None:
    def quantize(layer: nn.Linear, scheme: QuantizationScheme, kind: type) -> Parts:
        args = scheme.weights
        parts = layer.weight.detach().unflatten(
            1, (-1, args.group_size or layer.in_features)
        )
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        held = {
            "weight": layer.weight.detach(),
            "weight_scale": scale.bfloat16(),
            "weight_zero_point": zero,
        }
        stored = kind.compress(held, scheme)
        whole = kind.decompress(
            {**stored, "weight_scale": stored["weight_scale"].float()}, scheme
        )
        return stored, whole["weight"]

    group = dict(strategy="group", group_size=GROUP)
    for folder, kind, args in (
        (
            "compressed-w4a16",
            PackedQuantizationCompressor,
            dict(num_bits=4, symmetric=True, **group),
        ),
        (
            "compressed-w4a16-asym",
            PackedQuantizationCompressor,
            dict(num_bits=4, symmetric=False, **group),
        ),
        (
            "compressed-w8a16",
            PackedQuantizationCompressor,
            dict(num_bits=8, symmetric=True, strategy="channel"),
        ),
        (
            "compressed-w8a8",
            IntQuantizationCompressor,
            dict(num_bits=8, symmetric=True, strategy="channel"),
        ),
    ):
        int8 = kind is IntQuantizationCompressor
        moved = (
            QuantizationArgs(num_bits=8, strategy="token", dynamic=True)
            if int8
            else None
        )
        scheme = QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(**args),
            input_activations=moved,
        )
        settings = dict(
            quant_method="compressed-tensors",
            format="int-quantized" if int8 else "pack-quantized",
            config_groups={"group_0": json.loads(scheme.model_dump_json())},
            ignore=["lm_head"],
            quantization_status="compressed",
            kv_cache_scheme=None,
        )
        by_matrix(
            folder,
            torch.bfloat16,
            settings,
            lambda layer, scheme=scheme, kind=kind: quantize(layer, scheme, kind),
        )


@torch.no_grad()
def by_transformers(
    folder: str,
    settings: object,
    dequantize: Callable[[nn.Module], Tensor],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Quantize, save and load with transformers; the library multiplies by its own form
    of each matrix.
    """
    with TemporaryDirectory() as base:
        model().to(torch.bfloat16).save_pretrained(base)
        made = hf.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.bfloat16, quantization_config=settings
        )
    made.save_pretrained(HERE / folder)
    whole = hf.AutoModelForCausalLM.from_pretrained(HERE / folder, dtype=dtype).eval()
    expect(
        folder, whole, {name: dequantize(whole.get_submodule(name)) for name in NAMES}
    )


def bitsandbytes() -> None:
    from bitsandbytes.functional import dequantize_4bit

    def four(layer: nn.Module) -> Tensor:
        state = layer.weight.quant_state
        state.dtype = torch.float32
        return dequantize_4bit(layer.weight.data, state)

    for folder, kind, twice in (
        ("bitsandbytes-nf4", "nf4", True),
        ("bitsandbytes-fp4", "fp4", False),
    ):
        settings = hf.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind,
            bnb_4bit_use_double_quant=twice,
            bnb_4bit_compute_dtype=torch.float32,
        )
        by_transformers(folder, settings, four)
    by_transformers(
        "bitsandbytes-8",
        hf.BitsAndBytesConfig(load_in_8bit=True),
        lambda layer: layer.weight.data * layer.weight.SCB[:, None] / 127,
    )


def torchao() -> None:
    def dense(layer: nn.Module) -> Tensor:
        held = layer.weight
        return dequantize_affine(
            held.qdata, held.block_size, held.scale.float(), held.zero_point, torch.int8
        )

    by_transformers(
        "torchao-int8",
        hf.TorchAoConfig(Int8WeightOnlyConfig(version=2)),
        dense,
        torch.bfloat16,
    )
    intx = IntxWeightOnlyConfig(
        weight_dtype=torch.int4,
        granularity=PerGroup(GROUP),
        mapping_type=MappingType.ASYMMETRIC,
    )
    by_transformers("torchao-int4", hf.TorchAoConfig(intx), dense, torch.bfloat16)


def check_second(package: Path) -> None:
    """Store gptq-4-asym as gptq_v2 too: gptqmodel's own function adds the one to the
    zero points.
    """
    source = (package / "utils/model.py").read_text()
    start = source.index(
        "    if bits == 2:\n", source.index("def convert_gptq_v1_to_v2_format_module")
    )
    assert "module.qzeros.data += 0b00010001000100010001000100010001" in source[start:]
    folder = HERE / "gptq-4-v2"
    folder.mkdir(parents=True, exist_ok=True)
    tensors = load_file(HERE / "gptq-4-asym" / "model.safetensors")
    for name in [name for name in tensors if name.endswith("qzeros")]:
        tensors[name] += 0b00010001000100010001000100010001
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((HERE / "gptq-4-asym" / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "expected.safetensors").write_bytes(
        (HERE / "gptq-4-asym" / "expected.safetensors").read_bytes()
    )


if __name__ == "__main__":
    gptq(Path(sys.argv[1]))
    awq(Path(sys.argv[2]))
    check_second(Path(sys.argv[3]))
    compressed()
    bitsandbytes()
    torchao()
