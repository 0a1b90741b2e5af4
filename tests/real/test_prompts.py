"""Tokenizers and chat templates of published models equal transformers'."""

import random
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from foreword.model import load_tokenizer
from outputs import GET, WEATHER

pytestmark = pytest.mark.real

LINES = 10_000
ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*ROOT.glob("packages/foreword/src/foreword/**/*.[ch]"), *ROOT.glob("docs/**/*.md")]
)
CODE = [line for path in FILES for line in path.read_text("utf-8").splitlines()]
SPACES = ["\t", "\n", "\r\n", "  ", "\n\n\n", "\u00a0", "\u3000", "\u200b", "\x0b", " "]
EMOJI = "😀 👩\u200d👩\u200d👧 🇫🇷 👍🏽 ☺\ufe0f 1\ufe0f\u20e3".split()
SPECIAL = "<|im_start|> <|im_end|> <|endoftext|> <|im_ <repo_name>".split()
WORDS = "cafe\u0301 ﬁ İ ß Ω ñ مرحبا हिन्दी ไทย 한국어 don't I'LL".split()
DIGITS = list("0123456789٣४½²Ⅷ１")
MIXED = (SPACES, EMOJI, SPECIAL, WORDS, DIGITS, CODE, CODE, CODE)


def piece(dice: random.Random) -> str:
    kind, length = dice.randrange(len(MIXED) + 3), dice.randint(1, 12)
    if kind < len(MIXED):
        return "".join(dice.choices(MIXED[kind], k=1 + length // 4))
    if kind == len(MIXED):
        return "".join(chr(dice.randint(0x4E00, 0x9FFF)) for _ in range(length))
    if kind == len(MIXED) + 1:  # of any plane; surrogates are no characters
        point = dice.randrange(0x110000 - 0x800)
        return chr(point + 0x800 * (point >= 0xD800))
    return dice.randbytes(length).decode("latin-1")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    dice = random.Random(0)
    return [
        dice.choice(("", " ")).join(piece(dice) for _ in range(dice.randint(1, 6)))
        for _ in range(LINES)
    ]


@pytest.fixture(scope="module")
def theirs(name, model) -> PreTrainedTokenizerBase:
    """Return what transformers reads, with the step of tokenizer.json it leaves out."""
    path = model(name)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    if name == "smollm2":
        steps = [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    else:
        backend.normalizer = normalizers.NFC()
    return tokenizer


def test_tokens_are_those_of_transformers(llm, theirs, lines):
    ours = llm.tokenizer
    assert ours.get_vocab() == theirs.get_vocab()
    ids, wanted = ours(lines).input_ids, theirs(lines).input_ids
    pairs = zip(lines, ids, wanted, strict=True)
    assert [line for line, found, other in pairs if found != other] == []
    assert len({token for row in ids for token in row}) > 6_000
    assert ours.batch_decode(ids) == theirs.batch_decode(wanted)


CITY = {key: value for key, value in WEATHER["function"].items() if key != "strict"}
TOOLS = [GET, {"type": "function", "function": CITY}]
"""'strict' is for servers: no template is given it."""
QUESTION = {"role": "user", "content": "  Was ist 2 + 2?\n\n```\nx = {1: '<a>'}\n```  "}
SYSTEM = {"role": "system", "content": "Answer briefly."}
ANSWER = {"role": "assistant", "content": "Vier. 🙂\n"}
CALL = {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}
CALLS = [{"type": "function", "id": "call_1", "function": CALL}]
CALLED = {"role": "assistant", "content": "", "tool_calls": CALLS}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "17 °C"}
CHATS = ([QUESTION], [SYSTEM, QUESTION], [SYSTEM, QUESTION, ANSWER, QUESTION])
CALLING = ([QUESTION], [SYSTEM, QUESTION, CALLED, RESULT])


def test_chats_are_rendered_as_by_transformers(llm, name, theirs):
    assert llm.tokenizer.chat_template == theirs.chat_template
    cases = [(chat, None) for chat in CHATS]
    if name != "smollm2":  # its template reads no tools
        cases += [(chat, TOOLS) for chat in CALLING]
    for chat, tools in cases:
        options = dict(tools=tools, add_generation_prompt=True, return_dict=False)
        assert llm.render(chat, tools) == theirs.apply_chat_template(chat, **options)


def test_target_and_draft_share_a_tokenizer(model):
    ours, other = (load_tokenizer(model(name)) for name in ("qwen-0.5b", "qwen-1.5b"))
    assert ours.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
