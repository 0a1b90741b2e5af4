"""A target on two ranks writes its own plain text; scores are close to one process."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from foreword import LLM, SamplingParams, bundled
from foreword.model import Model
from foreword.model.kv.prefixes import PAGE
from foreword.model.kv.reads import Read
from foreword.prompts import load
from grids import slow_case

HEADS = bundled.draft().parent / "heads"
DRAFTS = {"lm": bundled.draft(), "eagle": HEADS / "eagle", "medusa": HEADS / "medusa"}
PROMPTS = ["The capital of France is", "1, 2, 3, 4, 5, 6,", "def add(a, b):"]
ACCEPTING = "0A"
"""State of a socket that accepts connections, in /proc/net/tcp."""
CLOSE = 1e-4
"""Largest difference of logits; 2.5e-5 was measured over 1,389 rows."""


@pytest.fixture(scope="module")
def split() -> Iterator[LLM]:
    with LLM(
        bundled.target(),
        draft=DRAFTS,
        dtype="float32",
        budget="heuristic",
        tensor_parallel=2,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def whole() -> Model:
    return Model.load(bundled.target(), dtype="float32", backend="pool")


def params(method: str, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(method=method, temperature=temperature, max_tokens=24, seed=7)


def test_each_rank_holds_its_heads(split: LLM):
    assert split.target.forms == {"ranks": 2}
    assert split.target.capability.backend == "pool"
    keys, _ = split.target.backend.pool.layer(0)
    assert keys.shape[1] == split.target.hf.config.num_key_value_heads // 2


def accepting(pid: int | str) -> list[str]:
    """Return the addresses, in hexadecimal, at which a process accepts connections."""
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(file.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return [
        row[1] for row in rows if row[3] == ACCEPTING and f"socket:[{row[9]}]" in links
    ]


def test_ranks_accept_connections_on_loopback_alone(split: LLM):
    """The rank accepts connections of rank 0; a number of bytes is in machine order."""
    (process,) = split.target.backend.lead.ranks.processes
    addresses = [one for pid in ("self", process.pid) for one in accepting(pid)]
    assert addresses
    loopback = ("0100007F:", "0" * 24 + "01000000:", "0" * 16 + "FFFF00000100007F:")
    assert [one for one in addresses if not one.startswith(loopback)] == []


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        ("ngram", 0.0),
        ("lm", 0.9),
        ("eagle", 0.9),
        ("medusa", 0.0),
        *(slow_case(name, 0.9) for name in ("ngram", "medusa")),
        *(slow_case(name, 0.0) for name in ("lm", "eagle")),
    ],
)
def test_drafts_do_not_change_the_text(split: LLM, method: str, temperature: float):
    plain = split.generate(PROMPTS, params("none", temperature))
    drafted = split.generate(PROMPTS, params(method, temperature))
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert not any(one.undrafted for one in drafted)
    accepted = sum(one.stats.accepted for one in drafted)
    assert 0 < accepted < sum(one.stats.drafted for one in drafted)


def test_text_does_not_depend_on_the_batch(split: LLM):
    together = split.generate(PROMPTS, params("lm", 0.9))
    alone = [split.generate([one], params("lm", 0.9))[0] for one in PROMPTS]
    assert [one.tokens for one in together] == [one.tokens for one in alone]


@pytest.mark.slow
def test_text_is_mostly_that_of_one_process(split: LLM):
    """It is not promised: 87 of 87 greedy texts, and of sampled ones, were equal."""
    chats = [one.messages for one in load("out-of-domain")[:8]]
    greedy = SamplingParams(temperature=0, max_tokens=24, method="none")
    ours = split.chat([list(one) for one in chats], greedy)
    with LLM(bundled.target(), dtype="float32", backend="pool", method="none") as llm:
        theirs = llm.chat([list(one) for one in chats], greedy)
    equal = [a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True)]
    assert sum(equal) >= 7


def test_logits_are_close(split: LLM, whole: Model):
    """A prompt in two chunks, a tree, its accepted branch moved, and more after it."""
    text = torch.randint(9, 8192, (60,)).tolist()
    found = [_scores(model, text) for model in (split.target, whole)]
    torch.testing.assert_close(*found, atol=CLOSE, rtol=0)
    assert not torch.equal(*found)  # or nothing was split


def _scores(model: Model, text: list[int]) -> torch.Tensor:
    model.open(1, 100)
    parents = [-1, 0, -1, 2, 3]
    scores = [
        model.read([Read(1, 0, text[:33])]),
        model.read([Read(1, 33, text[33:50], parents, keep=6)]),
    ]
    model.move(1, [45 + node for node in (2, 3, 4)], 45)
    scores.append(model.read([Read(1, 48, text[50:], keep=10)]))
    model.close(1)
    return torch.cat(scores)


def test_shared_pages_are_copied_on_every_rank(split: LLM):
    """A second text begins as one that is kept, and then writes into its last page."""
    model = split.target
    text = torch.randint(9, 8192, (80,)).tolist()
    fresh = text[:40] + torch.randint(9, 8192, (8,)).tolist()
    model.open(2, 100, text)
    model.read([Read(2, 0, text)])
    model.close(2)
    held = model.open(3, 100, text)
    assert held == PAGE
    copied = model.read([Read(3, 40, fresh[40:], keep=8)])
    model.open(4, 100)
    again = model.read([Read(4, 0, fresh, keep=8)])
    kept = model.open(5, 100, text)
    assert kept == held
    old = model.read([Read(5, kept, text[kept:], keep=1)])
    model.open(6, 100)
    new = model.read([Read(6, 0, text, keep=1)])
    for number in (3, 4, 5, 6):
        model.close(number)
    assert torch.equal(copied, again)
    assert torch.equal(old, new)


def test_the_head_and_the_embeddings_are_whole(split: LLM, whole: Model):
    hidden = torch.randn(5, 512)
    tokens = torch.tensor([1, 4095, 4096, 8191])
    torch.testing.assert_close(split.target.lm_head(hidden), whole.lm_head(hidden))
    assert torch.equal(split.target.embed(tokens), whole.embed(tokens))
