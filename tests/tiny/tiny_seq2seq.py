"""Tiny random encoder-decoders of each family, by name alone, and a tokenizer."""

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from foreword.model import Model
from grids import NEEDS_C
from tiny_models import disturb, of_bytes

VOCAB = 320
_BART: dict[str, Any] = dict(
    **dict(d_model=64, max_position_embeddings=96, init_std=0.3),
    **dict(encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=96),
    **dict(decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=96),
)
_PADS: dict[str, Any] = dict(pad_token_id=0, eos_token_id=1)
_T5: dict[str, Any] = dict(_PADS, d_model=64, d_kv=16, d_ff=96)
_T5 |= dict(num_layers=2, num_heads=4, decoder_start_token_id=0)
_ENDS: dict[str, Any] = dict(pad_token_id=1, bos_token_id=0)
_ENDS |= dict(eos_token_id=2, decoder_start_token_id=2)
_LED = _BART | _ENDS
_LED |= dict(max_encoder_position_embeddings=128, max_decoder_position_embeddings=96)
del _LED["max_position_embeddings"]
_GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
_LAST = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), VOCAB - 1)
_FORBIDDEN = dict(bad_words_ids=[[VOCAB - 1], [30, 31]], suppress_tokens=[40])

Rules = dict[str, Any]


def _forced(bos: int, eos: int) -> Rules:
    return dict(forced_bos_token_id=bos, forced_eos_token_id=eos)


FAMILIES: dict[str, tuple[type[hf.PreTrainedConfig], dict[str, Any], Rules]] = {
    "t5": (hf.T5Config, _T5, {}),
    "flan-t5": (hf.T5Config, _T5 | _GATED, {}),
    "mt5": (hf.MT5Config, _T5, {}),
    "bart": (hf.BartConfig, _BART | _ENDS, _forced(0, 2)),
    "mbart": (hf.MBartConfig, _BART | _ENDS, _forced(9, 2)),
    "pegasus": (
        hf.PegasusConfig,
        _BART | dict(_PADS, decoder_start_token_id=0),
        dict(forced_eos_token_id=1),
    ),
    "marian": (
        hf.MarianConfig,
        _BART | dict(_LAST, eos_token_id=0),
        dict(_FORBIDDEN, forced_eos_token_id=0),
    ),
    "led": (hf.LEDConfig, _LED | dict(attention_window=8), {}),
    "m2m100": (
        hf.M2M100Config,
        _BART | _ENDS,
        dict(forced_bos_token_id=7, begin_suppress_tokens=[50, 60]),
    ),
}
"""Config, its settings, and the generation settings that force or forbid tokens."""
_THREE = dict(d_kv=32, num_heads=3, num_decoder_layers=3)
FURTHER: dict[str, tuple[type[hf.PreTrainedConfig], dict[str, Any], Rules]] = {
    "umt5": (hf.UMT5Config, _T5, {}),
    "t5, heads of 32": (hf.T5Config, _T5 | _THREE, {}),
}
"""Those that only some tests are run with."""
IN_C = ", in C"
"""After the name of a family: the same in bfloat16, which backend "native" runs."""


def in_c(*names: str) -> list[Any]:
    """Return the parameters of a test for these families; without a compiler, skips."""
    return [pytest.param(name + IN_C, marks=NEEDS_C) for name in names]


def build(name: str) -> hf.PreTrainedModel:
    """Return the model of this name in FAMILIES or FURTHER: float32 (C: bfloat16), CPU,
    eval, with an LM head that is not tied.
    """
    family = name.removesuffix(IN_C)
    kind, options, rules = (FAMILIES | FURTHER)[family]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(family.encode()))
        model = hf.AutoModelForSeq2SeqLM.from_config(
            kind(vocab_size=VOCAB, **options), dtype=torch.float32
        )
        disturb(model)
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 64) * 0.3)
    model.generation_config.update(**rules)
    return (model if family == name else model.bfloat16()).eval()


@cache
def target(name: str) -> Model:
    """Return the model, loaded once, on the backend that it is for."""
    model = Model(build(name), name)
    assert (model.capability.backend == "native") is (IN_C in name)
    return model


def tokenizer(name: str) -> hf.PreTrainedTokenizerBase:
    """Return a family's tokenizer: bytes are tokens; a source ends in end of text."""
    _, options, _ = (FAMILIES | FURTHER)[name.removesuffix(IN_C)]
    ends = (options["pad_token_id"], options["eos_token_id"])
    places = [place for place in range(VOCAB) if place not in ends]
    words = {f"<{place}>": place for place in range(VOCAB)}
    for letter, place in zip(sorted(ByteLevel.alphabet()), places[20:], strict=False):
        del words[f"<{place}>"]
        words[letter] = place
    raw = of_bytes(words)
    eos = f"<{options['eos_token_id']}>"
    raw.post_processor = TemplateProcessing(
        f"$A {eos}", special_tokens=[(eos, options["eos_token_id"])]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=eos, pad_token=f"<{options['pad_token_id']}>"
    )


def saved(name: str, folder: Path) -> Path:
    """Return the folder with the model and its tokenizer."""
    build(name).save_pretrained(folder)
    tokenizer(name).save_pretrained(folder)
    return folder
