"""Tiny random vision-language models of each family, with a real processor, and pictures for them. Test code.

Weights are float32 and a function of the name alone; nothing is downloaded.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image, ImageDraw
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tiny_models import disturb

VOCAB = 320
SIZES: dict[str, Any] = dict(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.3, head_dim=16, tie_word_embeddings=False,
    bos_token_id=None, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
TURNS = (
    "{%% for m in messages %%}<{{ m.role }}>{%% if m.content is string %%}{{ m.content }}{%% else %%}"
    "{%% for p in m.content %%}{%% if p.type == 'image' %%}%s{%% else %%}{{ p.text }}{%% endif %%}{%% endfor %%}"
    "{%% endif %%}{%% endfor %%}{%% if add_generation_prompt %%}<assistant>{%% endif %%}"
)
"""A chat template; %s is what stands for an image."""


@dataclass(frozen=True)
class Family:
    """How a model of a family is built, and its image processor."""

    config: Callable[[dict[str, int]], hf.PreTrainedConfig]
    """Token ids by name -> config."""
    image_processor: Callable[[], Any]
    processor: str
    template: str = TURNS % "<image>"
    tokens: dict[str, str] = field(default_factory=lambda: {"image_token": "<image>"})
    """Special tokens, as attributes of the tokenizer."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the processor."""


def _qwen2_vl(ids: dict[str, int]) -> hf.PreTrainedConfig:
    rope = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])
    return hf.Qwen2VLConfig(
        text_config=dict(SIZES, rope_parameters=rope),
        vision_config=dict(
            depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=4, spatial_merge_size=2,
            temporal_patch_size=2, initializer_range=0.3,
        ),
        image_token_id=ids["image_token"], video_token_id=ids["video_token"],
        vision_start_token_id=ids["vision_start"], vision_end_token_id=ids["vision_end"], tie_word_embeddings=False,
    )  # fmt: skip


def _llava(ids: dict[str, int]) -> hf.PreTrainedConfig:
    return hf.LlavaConfig(
        text_config=hf.LlamaConfig(**SIZES),
        vision_config=hf.CLIPVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=32,
            patch_size=8, projection_dim=32, initializer_range=0.3,
        ),
        image_token_id=ids["image_token"], image_seq_length=16, tie_word_embeddings=False,
    )  # fmt: skip


_QWEN = dict(
    template=TURNS % "<|vision_start|><|image_pad|><|vision_end|>",
    tokens=dict(
        image_token="<|image_pad|>", video_token="<|video_pad|>", vision_start="<|vision_start|>",
        vision_end="<|vision_end|>",
    ),
)  # fmt: skip
_QWEN_IMAGES = dict(patch_size=4, merge_size=2, temporal_patch_size=2, size=dict(shortest_edge=256, longest_edge=4096))
FAMILIES: dict[str, Family] = {
    "qwen2-vl": Family(_qwen2_vl, lambda: hf.Qwen2VLImageProcessorPil(**_QWEN_IMAGES), "Qwen2VLProcessor", **_QWEN),
    "llava": Family(
        _llava,
        lambda: hf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        "LlavaProcessor",
        settings=dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1),
    ),
}


def tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer for a family: bytes are tokens, and so are the family's own."""
    special = FAMILIES[name].tokens
    words = {letter: place for place, letter in enumerate(["<pad>", *sorted(ByteLevel.alphabet())])}
    raw = RawTokenizer(BPE(words, []))
    raw.pre_tokenizer, raw.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", extra_special_tokens=special)


def special_ids(name: str) -> dict[str, int]:
    """Return the ids of the family's own tokens."""
    own = tokenizer(name)
    return {key: own.convert_tokens_to_ids(word) for key, word in FAMILIES[name].tokens.items()}


def build(name: str) -> PreTrainedModel:
    """Return the model called `name` in FAMILIES: float32, CPU, eval mode; nothing ends a text before the limit."""
    config = FAMILIES[name].config(special_ids(name))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(name.encode()))
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        disturb(model)
        for module in model.modules():  # vision towers choose their own deviation
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=0.15)
    return model.eval()


def saved(name: str, folder: Path) -> Path:
    """Return the folder with the model, its tokenizer and its processor."""
    family = FAMILIES[name]
    build(name).save_pretrained(folder)
    own = tokenizer(name)
    own.chat_template = family.template
    own.save_pretrained(folder)
    images = family.image_processor()
    images._processor_class = family.processor
    images.save_pretrained(folder)
    if family.settings:
        import json

        settings = dict(family.settings, processor_class=family.processor)
        (folder / "processor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@cache
def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of a gradient with shapes and a text."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    draw = ImageDraw.Draw(image)
    draw.ellipse((width // 4, height // 4, width // 2, height // 2), fill=(200, 30 + 40 * seed % 200, 30))
    draw.rectangle((width // 2, height // 3, width - 2, height - 2), fill=(20, 90, 50 + 60 * seed % 200))
    draw.text((1, 1), f"No. {seed}", fill=(250, 250, 0))
    return image


def said(text: str, *pictures: Image.Image) -> list[dict[str, Any]]:
    """Return a chat of one message: pictures, then a text."""
    content = [*({"type": "image", "image": one} for one in pictures), {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]
