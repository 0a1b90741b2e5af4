"""Tiny random Whisper models, vocabularies of v2 and v3, windows of 3 seconds."""

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers.pre_tokenizers import ByteLevel
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from tiny_models import disturb
from tiny_seq2seq import IN_C

SECONDS = 3
SOUND = Path(__file__).parents[1] / "speech" / "fox.wav"
"""Two seconds at 22,050 Hz, 16 bits: "The quick brown fox", by eSpeak NG 1.51."""
EOS = 50257
ENDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), EOS)
ENDS["decoder_start_token_id"] = EOS + 1
NAMES = ("v2", "v3")
SIZES: dict[str, Any] = dict(
    **dict(d_model=64, init_std=0.3, max_target_positions=448),
    **dict(encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=96),
    **dict(decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=96),
    max_source_positions=50 * SECONDS,
)


def languages(name: str) -> list[str]:
    codes = list(LANGUAGES)
    return codes if name == "v3" else codes[:-1]


def specials(name: str) -> list[str]:
    """Special tokens in the order of the checkpoints of OpenAI, without timestamps."""
    words = [f"<|{code}|>" for code in languages(name)]
    tasks = "translate transcribe startoflm startofprev nospeech notimestamps".split()
    tasks = [f"<|{task}|>" for task in tasks]
    return ["<|endoftext|>", "<|startoftranscript|>", *words, *tasks]


@cache
def tokenizer(name: str) -> hf.WhisperTokenizer:
    """Return a tokenizer of bytes, words of filler, special tokens, timestamps."""
    letters = sorted(ByteLevel.alphabet())
    vocab = {letter: place for place, letter in enumerate(letters)}
    vocab |= {f"Ġw{place}": place for place in range(len(letters), EOS)}
    vocab["<|endoftext|>"] = EOS
    one = hf.WhisperTokenizer(vocab=vocab, merges=[])
    one.add_special_tokens({"additional_special_tokens": specials(name)[1:]})
    one.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    return one


def settings(name: str) -> hf.GenerationConfig:
    """Return the checkpoints' generation settings, without timestamps beyond."""
    place = {word: EOS + at for at, word in enumerate(specials(name))}
    begin = place["<|notimestamps|>"] + 1
    outside = range(begin + 50 * SECONDS + 1, begin + 1501)
    return hf.GenerationConfig(
        **ENDS,
        max_length=448,
        begin_suppress_tokens=[220, EOS],
        suppress_tokens=[1, 2, 7, 8, 9, *range(EOS + 1, begin - 1), *outside],
        lang_to_id={f"<|{code}|>": place[f"<|{code}|>"] for code in languages(name)},
        task_to_id={task: place[f"<|{task}|>"] for task in ("transcribe", "translate")},
        no_timestamps_token_id=begin - 1,
        prev_sot_token_id=place["<|startofprev|>"],
        is_multilingual=True,
        max_initial_timestamp_index=50,
    )


def build(
    name: str, seed: str = "", **sizes: Any
) -> hf.WhisperForConditionalGeneration:
    """Return the model of this name: float32 (C: bfloat16), CPU, own LM head."""
    family = name.removesuffix(IN_C)
    vocab = EOS + len(specials(name)) + 1501
    config = hf.WhisperConfig(
        vocab_size=vocab,
        num_mel_bins=80 if family == "v2" else 128,
        **ENDS,
        tie_word_embeddings=False,
        **(SIZES | sizes),
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(zlib.crc32(f"{family}{seed}".encode()))
        model = hf.WhisperForConditionalGeneration(config)
        disturb(model)
        weight = torch.randn(vocab, config.d_model) * 0.3
        model.proj_out.weight = torch.nn.Parameter(weight)
    model.generation_config = settings(name)
    begin = model.generation_config.no_timestamps_token_id + 1
    with torch.no_grad():
        # so that there are timestamps among the words
        model.proj_out.weight[begin : begin + 50 * SECONDS] *= 1.5
    return (model if family == name else model.bfloat16()).eval()


def extractor(name: str) -> hf.WhisperFeatureExtractor:
    bands = 80 if name.startswith("v2") else 128
    return hf.WhisperFeatureExtractor(feature_size=bands, chunk_length=SECONDS)


def saved(model: hf.WhisperForConditionalGeneration, name: str, folder: Path) -> Path:
    """Return the folder with the model, its tokenizer and its feature extractor."""
    model.save_pretrained(folder)
    hf.WhisperProcessor(extractor(name), tokenizer(name)).save_pretrained(folder)
    return folder
