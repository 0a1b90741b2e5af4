"""A tiny random model that sees, with room for an agent's prompt."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import foreword.bundled
from tiny_models import random
from tiny_vision import FAMILIES, SIZES

CONTEXT = 131_072
FAMILY = FAMILIES["qwen2-vl"]
BUNDLED = foreword.bundled.target()


def tokenizer() -> PreTrainedTokenizerBase:
    """Return the bundled tokenizer with image marks, and a template without tools."""
    return PreTrainedTokenizerFast(
        tokenizer_file=str(BUNDLED / "tokenizer.json"),
        eos_token="<|end|>",
        pad_token="<|end|>",
        extra_special_tokens=FAMILY.tokens,
        chat_template=FAMILY.template,
    )


def saved(folder: Path) -> Path:
    """Return the folder of the model, with one layer, its tokenizer and processor."""
    own = tokenizer()
    marks = {
        name: own.convert_tokens_to_ids(mark) for name, mark in FAMILY.tokens.items()
    }
    like = FAMILY.config(marks)
    text = SIZES | dict(
        vocab_size=len(own),
        num_hidden_layers=1,
        max_position_embeddings=CONTEXT,
        eos_token_id=own.eos_token_id,
        rope_parameters=like.text_config.rope_parameters,
    )
    config = type(like)(**(like.to_dict() | {"text_config": text}))
    random(config).save_pretrained(folder)
    own.save_pretrained(folder)
    images = FAMILY.image_processor()
    images._processor_class = FAMILY.processor
    images.save_pretrained(folder)
    return folder
