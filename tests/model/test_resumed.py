"""An answer that is read again from its beginning goes on with the same bits."""

import pytest

import zoo
from drafters import Foresight, known
from foreword.api.job import repeat
from foreword.model import Mode, Model
from grids import slow_case
from running import Case, engine, of_length, plain
from sweep import DTYPES

KINDS = [
    ("plain", "mamba"),
    slow_case("plain (whole texts)", "rwkv"),
    ("cache", "lfm2"),
    ("pool", "llama"),
]
LENGTH, SENT = 16, 5
"""Tokens of an answer, and those written before it is resumed."""


@pytest.mark.filterwarnings("ignore:.*runs in mode")
@pytest.mark.parametrize(("backend", "kind"), KINDS, ids=str)
def test_resumed_answer_goes_on_with_the_same_bits(backend, kind):
    model = Model(
        zoo.twin(zoo.build(kind), DTYPES["bfloat16"]), backend=backend.partition(" ")[0]
    )
    assert model.capability.backend == backend
    params = [of_length(LENGTH, 1.0, seed=seed, logprobs=0) for seed in range(3)]
    cases = [Case(tuple(range(50, 71 + one.seed)), one) for one in params]
    want = plain(model, cases)
    assert len({tuple(answer.tokens) for answer in want}) == len(want)
    drafter = None
    if model.mode is not Mode.PLAIN:
        drafter = Foresight(known(want), spoilt=0.4, vocab=model.vocab)
    loop = engine(model, drafter, 4, chunk=16)
    sequences = [case.request(model.eos) for case in cases]
    repeat(
        sequences, [(i, answer.tokens[:SENT], None) for i, answer in enumerate(want)]
    )
    for sequence in sequences:
        loop.add(sequence)
    deltas = []
    while not loop.idle:
        deltas += loop.step()
    for sequence, answer in zip(sequences, want, strict=True):
        logprobs = [
            logprob
            for delta in deltas
            if delta.id == sequence.id
            for logprob in delta.logprobs
        ]
        assert sequence.tokens[sequence.prompt :] == answer.tokens
        assert logprobs == answer.logprobs[SENT:]
        assert (sequence.stats.accepted > 0) == (drafter is not None)
