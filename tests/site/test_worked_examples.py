"""The worked examples about speculative decoding are true of the bundled models."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from foreword import LLM, SamplingParams, bundled
from foreword.chats.prompts import ids_of
from foreword.sampling.noise import extended, gumbel, start

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/start/speculative-decoding.md").read_text(encoding="utf-8")
TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."
ROW = re.compile(r"^\| seed (\d+), “(\w+)” \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(nodes=4)


def chat() -> list[dict[str, str]]:
    return [{"role": "user", "content": TALE}]


def test_the_round_on_the_page_is_a_round_of_the_models(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, trace=True)
    answer = llm.chat(chat(), params)
    one = answer.rounds[3]
    drafted = [node.text for node in one.draft]
    assert drafted[:3] == [" gra", "in", "."]
    assert list(one.accepted) == [0, 1]
    assert one.added.text == " up"
    for text in (*drafted[:3], one.added.text):
        assert f"`{text.replace(' ', '␣')}`" in PAGE
    before = "".join(piece for earlier in answer.rounds[:3] for piece in earlier.pieces)
    assert f"“{before}”" in " ".join(PAGE.split())
    tokens, rounds = answer.stats.tokens, len(answer.rounds)
    assert f"has {tokens} tokens and took {rounds} forwards" in " ".join(PAGE.split())


def test_the_sums_on_the_page_are_the_models(llm: LLM) -> None:
    beginning = llm.tokenizer("The river")["input_ids"]
    ids = [*ids_of(llm.render(chat())), *beginning]
    target, draft = (
        distribution(path, ids) for path in (bundled.target(), bundled.draft())
    )
    rows = ROW.findall(PAGE)
    assert len(rows) == 4
    for seed, word, *shown in rows:
        noise = gumbel([extended(start(int(seed)), ids)], len(target))[0]
        (token,) = llm.tokenizer(f" {word}")["input_ids"]
        sums = [noise, target + noise, draft + noise]
        found = [float(one[token]) for one in sums]
        assert found == pytest.approx([*map(number, shown)], abs=0.01)
        chosen = [int(one.argmax()) == token for one in sums[1:]]
        assert chosen == ["**" in cell for cell in shown[1:]]


def distribution(path: Path, ids: list[int]) -> torch.Tensor:
    """Return the log-probabilities of the next token."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)


def number(cell: str) -> float:
    return float(cell.strip("*").replace("−", "-"))
