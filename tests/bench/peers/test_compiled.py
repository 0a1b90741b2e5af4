"""Compiled generation of transformers is compiled once and writes the same text."""

import pytest
import torch
from torch._dynamo.utils import counters

import starter
from foreword_lab.bench.peers.engines import COMPILED
from foreword_lab.bench.peers.hf import GENERATE, entry
from foreword_lab.bench.records import BenchRequest
from foreword_train.methods.lm import load


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_texts_of_all_lengths_share_one_compilation(monkeypatch):
    monkeypatch.setattr("foreword_lab.bench.peers.hf.BACKEND", "eager")
    model = load(starter.target(), torch.float32).eval()
    usual, compiled = entry(GENERATE, model, None), entry(COMPILED, model, None)
    graphs = []
    for length in (9, 30, 17):
        request = BenchRequest("one", tuple(range(50, 50 + length)), 0.0, 3, 8)
        want, found = usual.run(request), compiled.run(request)
        assert found.tokens == want.tokens
        assert found.passes == want.passes == len(found.tokens)
        assert 0 < found.first < found.seconds
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert len(set(graphs)) == 1
