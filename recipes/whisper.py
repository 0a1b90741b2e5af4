"""Convert a Whisper in CTranslate2's format to a folder of transformers.

$ python recipes/whisper.py whisper-base/model.bin FOLDER

The file is a list of named tensors. config.json and tokenizer.json are read from beside
it; the generation settings equal OpenAI's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
import typer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

TYPES = {1: "i1", 2: "<i2", 4: "<f2"}
"""Number of a type in the file -> its name in numpy."""
NAMES = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": [f"self_attn.{part}_proj" for part in "qkv"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": [f"encoder_attn.{part}_proj" for part in "kv"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
    "embeddings": ["embed_tokens"],
    "position_encodings": ["embed_positions"],
}
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def tensors(content: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a file of version 6 by their names."""
    stream = BytesIO(content)

    def number(kind: str) -> int:
        return int(np.frombuffer(stream.read(np.dtype(kind).itemsize), kind)[0])

    def name() -> str:
        return stream.read(number("<u2"))[:-1].decode()

    assert (number("<u4"), name(), number("<u4")) == (6, "WhisperSpec", 3)
    for _ in range(number("<u4")):
        key, shape = name(), [number("<u4") for _ in range(number("u1"))]
        kind, size = TYPES[number("u1")], number("<u4")
        yield key, torch.tensor(np.frombuffer(stream.read(size), kind).reshape(shape))


def weights(held: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights by transformers' names; keys have no bias there."""
    for key, tensor in held.items():
        part, *middle, kind = key.split("/")
        if not tensor.is_floating_point():
            continue
        if middle[0] != "layer_norm" and middle[0].startswith("layer_"):
            part += f".layers.{middle.pop(0).removeprefix('layer_')}"
        targets = NAMES.get("/".join(middle), [".".join(middle)])
        for target, rows in zip(targets, tensor.chunk(len(targets)), strict=True):
            name = f"model.{part}.{target}.{KINDS.get(kind, kind)}"
            if not name.endswith("k_proj.bias"):
                yield name, rows.float()


def tokenizer(content: dict[str, Any]) -> hf.WhisperTokenizer:
    """Return the tokenizer of a package, with the timestamps, which it leaves out."""
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    pairs = [tuple(pair.split() if isinstance(pair, str) else pair) for pair in merges]
    made = hf.WhisperTokenizer(vocab=vocab, merges=pairs)
    named = {token["content"]: token["id"] for token in content["added_tokens"]}
    made.add_special_tokens({"additional_special_tokens": sorted(named, key=named.get)})
    made.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    assert made.convert_tokens_to_ids([*named]) == [*named.values()]
    return made


def settings(
    words: hf.WhisperTokenizer, package: dict[str, Any]
) -> hf.GenerationConfig:
    """Return the generation settings of OpenAI's checkpoints."""
    ids = words.convert_tokens_to_ids
    end, silent = ids("<|endoftext|>"), ids("<|notimestamps|>")
    made = hf.GenerationConfig(
        decoder_start_token_id=ids("<|startoftranscript|>"),
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        max_length=448,
        suppress_tokens=package["suppress_ids"],
        begin_suppress_tokens=package["suppress_ids_begin"],
        no_timestamps_token_id=silent,
        prev_sot_token_id=ids("<|startofprev|>"),
        max_initial_timestamp_index=50,
        is_multilingual=end == 50257,
        forced_decoder_ids=[[1, silent]],
    )
    if made.is_multilingual:
        codes = [f"<|{code}|>" for code in LANGUAGES if code != "yue"]
        made.lang_to_id = dict(zip(codes, ids(codes), strict=True))
        made.task_to_id = {"transcribe": ids("<|transcribe|>")}
        made.forced_decoder_ids = [[1, None], [2, ids("<|transcribe|>")]]
    return made


def converted(path: Path, folder: Path) -> Path:
    """Write the model of `path`, with the JSON files beside it, to `folder`."""
    held = dict(tensors(path.read_bytes()))
    package, content = (
        json.loads(path.with_name(name).read_text(encoding="utf-8"))
        for name in ("config.json", "tokenizer.json")
    )
    words = tokenizer(content)
    width, bands, _ = held["encoder/conv1/weight"].shape
    sizes = {
        f"{part}_{kind}": value
        for part in ("encoder", "decoder")
        for kind, value in (
            (
                "layers",
                sum(f"{part}/layer_{n}/ffn/linear_0/bias" in held for n in range(32)),
            ),
            ("attention_heads", int(held[f"{part}/num_heads"])),
            ("ffn_dim", 4 * width),
        )
    }
    common = settings(words, package)
    config = hf.WhisperConfig(
        vocab_size=len(held["decoder/embeddings/weight"]),
        num_mel_bins=bands,
        d_model=width,
        bos_token_id=common.bos_token_id,
        eos_token_id=common.eos_token_id,
        pad_token_id=common.pad_token_id,
        decoder_start_token_id=common.decoder_start_token_id,
        **sizes,
    )
    made = hf.WhisperForConditionalGeneration(config)
    differing = made.load_state_dict(dict(weights(held)), strict=False)
    assert differing == (["proj_out.weight"], [])
    made.tie_weights()
    made.generation_config = common
    made.save_pretrained(folder)
    hf.WhisperProcessor(hf.WhisperFeatureExtractor(bands), words).save_pretrained(
        folder
    )
    return folder


def main(model: Path, folder: Path) -> None:
    """Convert a model."""
    typer.echo(converted(model, folder))


if __name__ == "__main__":
    typer.run(main)
