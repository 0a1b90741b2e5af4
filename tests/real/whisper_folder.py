"""Converts a Whisper of CTranslate2, a list of named tensors, to a folder of
transformers. Test code.
"""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from transformers.models.whisper.tokenization_whisper import LANGUAGES

TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
"""Number of a type in the file -> its name in numpy."""
NAMES = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
}
FUSED = {
    "self_attention/linear_0": [f"self_attn.{part}_proj" for part in "qkv"],
    "attention/linear_1": [f"encoder_attn.{part}_proj" for part in "kv"],
}
KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}


def tensors(content: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a file of version 6 by their names."""
    stream = BytesIO(content)

    def number(kind: str) -> int:
        return int(np.frombuffer(stream.read(np.dtype(kind).itemsize), kind)[0])

    def name() -> str:
        return stream.read(number("<u2"))[:-1].decode()

    assert (number("<u4"), name()) == (6, "WhisperSpec")
    number("<u4")
    for _ in range(number("<u4")):
        key, shape = name(), [number("<u4") for _ in range(number("u1"))]
        kind, size = TYPES[number("u1")], number("<u4")
        yield key, torch.tensor(np.frombuffer(stream.read(size), kind).reshape(shape))


def weights(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights by transformers' names; keys have no bias there."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in held.items():
        if not tensor.is_floating_point():
            continue
        part, *middle, kind = key.split("/")
        prefix = f"model.{part}."
        if middle[0].startswith("layer_") and middle[0] != "layer_norm":
            prefix += f"layers.{middle.pop(0)[6:]}."
        inner, kind = "/".join(middle), KINDS.get(kind, kind)
        targets = FUSED.get(inner, [NAMES.get(inner, inner)])
        for target, rows in zip(targets, tensor.chunk(len(targets)), strict=True):
            if not (target.endswith("k_proj") and kind == "bias"):
                found[f"{prefix}{target}.{kind}"] = rows.float()
    return found


def tokenizer(path: Path) -> hf.WhisperTokenizer:
    """Return the tokenizer of the package, with the timestamps, which it leaves out."""
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    pairs = [
        tuple(one.split()) if isinstance(one, str) else tuple(one) for one in merges
    ]
    made = hf.WhisperTokenizer(vocab=vocab, merges=pairs)
    specials = sorted(content["added_tokens"], key=lambda token: token["id"])
    names = [token["content"] for token in specials if token["special"]]
    made.add_special_tokens({"additional_special_tokens": names})
    made.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    assert all(
        made.convert_tokens_to_ids(one["content"]) == one["id"] for one in specials
    )
    return made


def settings(
    words: hf.WhisperTokenizer, package: dict[str, list[int]], multilingual: bool
) -> hf.GenerationConfig:
    """Return generation settings as those of OpenAI's checkpoints."""
    ids = words.convert_tokens_to_ids
    end, silent = ids("<|endoftext|>"), ids("<|notimestamps|>")
    common = dict(
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
        is_multilingual=multilingual,
    )
    if not multilingual:
        return hf.GenerationConfig(**common)
    codes = [f"<|{code}|>" for code in LANGUAGES if code != "yue"]
    return hf.GenerationConfig(
        **common,
        lang_to_id={code: ids(code) for code in codes},
        task_to_id={task: ids(f"<|{task}|>") for task in ("transcribe", "translate")},
    )


def converted(path: Path, folder: Path) -> Path:
    """Write the model of `path`, with the JSON files beside it, to `folder`."""
    held = dict(tensors(path.read_bytes()))
    package = json.loads(path.with_name("config.json").read_text())
    words = tokenizer(path.with_name("tokenizer.json"))
    size = held["encoder/conv1/weight"].shape
    vocab = len(held["decoder/embeddings/weight"])
    common = settings(words, package, multilingual=vocab > 51864)
    config = hf.WhisperConfig(
        vocab_size=vocab,
        num_mel_bins=size[1],
        d_model=size[0],
        pad_token_id=common.pad_token_id,
        bos_token_id=common.bos_token_id,
        eos_token_id=common.eos_token_id,
        decoder_start_token_id=common.decoder_start_token_id,
    )
    for part in ("encoder", "decoder"):
        layers = {key.split("/")[1] for key in held if key.startswith(f"{part}/layer_")}
        setattr(config, f"{part}_layers", len(layers - {"layer_norm"}))
        setattr(config, f"{part}_attention_heads", int(held[f"{part}/num_heads"]))
        setattr(config, f"{part}_ffn_dim", 4 * size[0])
    made = hf.WhisperForConditionalGeneration(config)
    missing = made.load_state_dict(weights(held), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["proj_out.weight"]
    made.tie_weights()
    made.generation_config = common
    made.save_pretrained(folder)
    extractor = hf.WhisperFeatureExtractor(feature_size=size[1])
    hf.WhisperProcessor(extractor, words).save_pretrained(folder)
    return folder
