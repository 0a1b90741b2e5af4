"""Writes `recorded/gguf-*`: tiny models, and the GGUF files that llama.cpp converts
them to. Run once, by hand:

    # a checkout of llama.cpp; commit 0c1e57098 was used
    PYTHONPATH=tests:tests/tiny python tests/model/quantized/record_gguf.py LLAMA_CPP

Each folder holds a checkpoint of random weights as transformers saves it, and
model.gguf, without a tokenizer, in bfloat16; the experts of gpt-oss are in MXFP4 in
both. No test imports this.
"""

import sys
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

import quantizing
from tiny_sizes import FULL, LINEAR, NO_ENDS, experts, linear, sizes

HERE = Path(__file__).parent / "recorded"
SIZES = sizes(64, 32, 4, 2, **NO_ENDS) | dict(
    vocab_size=64, max_position_embeddings=256, initializer_range=0.3
)
DELTA_NET = SIZES | sizes(32, 32, 2, 1, head_dim=32)
MODELS: dict[str, PreTrainedConfig] = {
    "smollm3": hf.SmolLM3Config(**SIZES, num_hidden_layers=4),
    "lfm2": hf.Lfm2Config(
        **SIZES | dict(intermediate_size=96),
        num_hidden_layers=3,
        layer_types=["conv", FULL, "conv"],
        block_multiple_of=32,
    ),
    "gpt-oss": hf.GptOssConfig(
        **SIZES,
        num_hidden_layers=2,
        head_dim=16,
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen35": hf.Qwen3_5TextConfig(
        **DELTA_NET, **linear(6, 16), num_hidden_layers=4, tie_word_embeddings=True
    ),
    "qwen35moe": hf.Qwen3_5MoeTextConfig(
        **DELTA_NET,
        **linear(6, 16, 32),
        **experts(shared_expert_intermediate_size=32),
        num_hidden_layers=2,
        layer_types=[LINEAR, FULL],
    ),
}


@torch.no_grad()
def checkpoint(name: str, config: PreTrainedConfig) -> Path:
    """Save a model whose vectors and biases are random too."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for part, weight in model.named_parameters():
        if (weight.dim() == 1 or part.endswith("_bias")) and not part.endswith("A_log"):
            weight.add_(torch.randn_like(weight) * 0.1)
    folder = HERE / f"gguf-{name}"
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    if name == "gpt-oss":
        packed(tensors)
        quantizing.configured(folder, quantization_config=dict(quant_method="mxfp4"))
    if name == "qwen35":
        further(tensors)
        quantizing.configured(folder, mtp_num_hidden_layers=1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def packed(tensors: dict[str, Tensor]) -> None:
    """Replace the weights of experts by random blocks and scales."""
    for name in [
        name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))
    ]:
        experts, depth, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(
            256, (experts, outputs, depth // 32, 16), dtype=torch.uint8
        )
        tensors[f"{name}_scales"] = torch.randint(
            122, 126, (experts, outputs, depth // 32), dtype=torch.uint8
        )


def further(tensors: dict[str, Tensor]) -> None:
    """Add the layer that predicts the token after the next one, as Qwen3.5 has it;
    transformers does not read it.
    """
    hidden = tensors["model.norm.weight"].shape[0]
    for name in [name for name in tensors if name.startswith("model.layers.3.")]:
        tensors[name.replace("model.layers.3.", "mtp.layers.0.")] = tensors[
            name
        ].clone()
    tensors["mtp.fc.weight"] = torch.zeros(hidden, 2 * hidden, dtype=torch.bfloat16)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = torch.zeros(hidden, dtype=torch.bfloat16)


def convert(folder: Path) -> None:
    """Convert a checkpoint with llama.cpp's own code, but for the tokenizer."""
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    converter = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    converter.set_vocab, converter.no_mtp = (
        lambda _: None,
        "mtp_num_hidden_layers" not in hparams,
    )
    with torch.inference_mode():
        converter(folder, gguf.LlamaFileType.MOSTLY_BF16, folder / "model.gguf").write()


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    for name, config in MODELS.items():
        convert(checkpoint(name, config))
