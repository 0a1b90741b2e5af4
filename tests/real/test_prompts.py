"""Tokenizers and chat templates of published models are those that transformers reads
from the same files.
"""

import random
from functools import cache
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from foreword.model import load_tokenizer
from real.published import model

pytestmark = pytest.mark.real

LINES = 10_000
REPOSITORY = Path(__file__).parents[2]
SPACES = ("\t", "\n", "\r\n", "  ", "\n\n\n", "\u00a0", "\u3000", "\u200b", "\x0b", " ")
EMOJI = (
    "😀",
    "👩\u200d👩\u200d👧",
    "🇫🇷",
    "👍🏽",
    "☺\ufe0f",
    "1\ufe0f\u20e3",
    "🏴\U000e0067",
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "<repo_name>")
LETTERS = (
    "cafe\u0301",
    "ﬁ",
    "İ",
    "ß",
    "Ω",
    "ñ",
    "مرحبا",
    "हिन्दी",
    "ไทย",
    "한국어",
    "don't",
    "I'LL",
)
DIGITS = "0123456789٣४½²Ⅷ１"


@cache
def code() -> list[str]:
    """Return the lines of the C sources."""
    paths = sorted((REPOSITORY / "src").rglob("*.c"))
    return [line for path in paths for line in path.read_text().splitlines()]


def piece(dice: random.Random) -> str:
    kind, length = dice.randrange(9), dice.randint(1, 12)
    if kind < 2:
        return dice.choice(code())
    if kind == 2:
        return "".join(chr(dice.randint(0x4E00, 0x9FFF)) for _ in range(length))
    if kind == 3:  # of any plane; surrogates are no characters
        point = dice.randrange(0x110000 - 0x800)
        return chr(point + 0x800 * (point >= 0xD800))
    if kind == 4:
        return dice.randbytes(length).decode("latin-1")
    if kind == 5:
        return "".join(dice.choices(DIGITS, k=length))
    return "".join(
        dice.choices((SPACES, EMOJI + LETTERS, SPECIAL)[kind - 6], k=1 + length // 4)
    )


@cache
def lines() -> list[str]:
    dice = random.Random(0)
    return [
        dice.choice(("", " ")).join(piece(dice) for _ in range(dice.randint(1, 6)))
        for _ in range(LINES)
    ]


@cache
def theirs(name: str) -> PreTrainedTokenizerBase:
    """Return what transformers reads, with the step that its reader leaves out of what
    the owner's tokenizer.json has.
    """
    path = model(name)
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    backend = tokenizer.backend_tokenizer
    if name == "smollm2":
        digits = pre_tokenizers.Digits(individual_digits=True)
        steps = [digits, backend.pre_tokenizer]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    else:
        backend.normalizer = normalizers.NFC()
    return tokenizer


@pytest.mark.parametrize("name", ["smollm2", "qwen-0.5b"])
def test_tokens_are_those_of_transformers(name):
    ours = load_tokenizer(model(name))
    assert ours.get_vocab() == theirs(name).get_vocab()
    found, wanted = (one(lines()).input_ids for one in (ours, theirs(name)))
    different = [
        (line, ids, other)
        for line, ids, other in zip(lines(), found, wanted, strict=True)
        if ids != other
    ]
    assert different == []
    assert len({token for ids in found for token in ids}) > 10_000
    assert ours.batch_decode(found) == theirs(name).batch_decode(wanted)


def test_target_and_draft_share_a_tokenizer():
    ours, other = (load_tokenizer(model(name)) for name in ("qwen-0.5b", "qwen-1.5b"))
    assert ours.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
