"""A row's bits do not depend on its forward, though the library's depend on rows."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import starter
from foreword import LLM
from foreword.model import Model, Read
from foreword.model.executors.cuda.backend import BUCKETS, CudaGraphBackend
from foreword_lab.certify.bits import bits_check
from foreword_train.methods.lm import load
from running import target, tokenizer
from tiny_models import build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXT = [token % 300 for token in range(7, 150)]


class Library(TorchFunctionMode):
    """Products whose bits depend on the number of rows, and on nothing else beside."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        rows = args[0].flatten(0, -2)
        alone = torch.cat([func(row[None], *args[1:]) for row in rows])
        result = alone * (1 + len(rows) * 2.0**-20)
        return result.unflatten(0, args[0].shape[:-1])


def record(work):
    """Repeats the work with the products of the library."""

    def play():
        with Library():
            return work()

    return play


def backend(buckets: tuple[int, ...] = BUCKETS) -> CudaGraphBackend:
    model = build("llama-gqa").to(DEVICE)
    made = CudaGraphBackend(model, record, buckets, kernel=DEVICE == "cuda")
    for sequence in range(4):
        made.open(sequence, 400)
    return made


def plain(made: CudaGraphBackend, tokens: list[int]) -> torch.Tensor:
    """Return the logits of each token, each read in a forward of its own."""
    steps = [made.read([Read(3, i, [token])]) for i, token in enumerate(tokens)]
    return torch.cat(steps)


@pytest.mark.parametrize(
    ("buckets", "equal"), [(BUCKETS, True), ((16,), True), ((16, 64), False)], ids=str
)
def test_prompt_cuts_and_batches_leave_the_bits(buckets, equal):
    made = backend(buckets)
    tokens = TEXT[:40]
    want = plain(made, tokens)
    whole = made.read([Read(0, 0, tokens, keep=40)])
    beside = Read(1, 0, TEXT[50:90], keep=7)
    last = made.read([beside, Read(0, 31, tokens[31:], keep=9)])[7:]
    states = made.read_hidden([Read(2, 0, tokens[:33], keep=0)], (1,))[1]
    assert torch.equal(whole, want) is equal
    assert torch.equal(last, want[31:]) is equal
    alone = [made.read_hidden([Read(2, i, tokens[i : i + 1])], (1,)) for i in (0, 32)]
    assert torch.equal(states[[0, 32]], torch.cat([own for _, own in alone])) is equal


@pytest.mark.parametrize("drafted", [1, 63, 64, 120])
def test_draft_of_any_length_leaves_the_bits(drafted):
    """Chains and trees, also trees of several forwards, beside another text."""
    made = backend()
    tokens = TEXT[: 9 + drafted]
    want = plain(made, tokens)[8:]
    other = Read(1, 0, TEXT[40:77], keep=2)
    made.read([Read(0, 0, tokens[:8], keep=0)])
    line = made.read([other, Read(0, 8, tokens[8:], keep=1 + drafted)])[2:]
    assert torch.equal(line, want)
    # each node has a sibling, which is read and which nothing follows
    parents = [-1, -1, *(node - 2 - node % 2 for node in range(2, 2 * drafted))]
    nodes = [token for follower in tokens[9:] for token in (follower, 5)]
    tree = Read(0, 8, [tokens[8], *nodes], parents, keep=1 + len(nodes))
    logits = made.read([other, tree])[2:]
    assert torch.equal(logits[1::2], want[1:])
    assert torch.equal(logits[0], want[0])


@pytest.mark.parametrize(
    ("buckets", "outcome"), [(BUCKETS, "consistent"), ((16, 64), "differs")], ids=str
)
def test_certificate_compares_the_bits(buckets, outcome):
    hf = load(starter.draft(), torch.float32).eval()
    model = Model(hf, known=replace(target().capability, backend="graph"), swaps=[])
    model.backend = CudaGraphBackend(hf, by_rows, buckets, kernel=False)
    (check,) = bits_check(LLM(model, tokenizer=tokenizer()), quick=True)
    assert check.status == outcome
    assert check.evidence["rows of the text"] > 64


def by_rows(work):
    """Repeats the work with scores that depend on the number of rows alone."""

    def play():
        logits, states = work()
        return logits * (1 + len(logits) * 2.0**-20), states

    return play
