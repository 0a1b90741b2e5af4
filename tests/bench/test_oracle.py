"""The oracle is right with the set probability, and the text is plain decoding's."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foreword.budget import FixedBudget
from foreword.draft.none import NoDrafter
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams
from foreword.verify import rule
from foreword_lab.bench.oracle import Oracle
from grids import slow_case
from tiny_sizes import sizes

PROMPT = [5, 6, 7, 8]
VOCAB = 97


@pytest.fixture(scope="module")
def target() -> Model:
    config = LlamaConfig(
        **sizes(48, 64, 6, 2, 2),
        vocab_size=VOCAB,
        head_dim=16,
        initializer_range=0.3,
        max_position_embeddings=2048,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return Model(LlamaForCausalLM(config))


def request(temperature: float, *text: int, tokens: int = 20, seed: int = 3) -> Request:
    """A request for the answer to PROMPT that has this text so far."""
    params = SamplingParams(temperature=temperature, max_tokens=tokens)
    return Request(1, [*PROMPT, *text], len(PROMPT), params, seed)


def answer(
    target: Model, drafter, temperature: float, tokens: int = 32, seed: int = 3
) -> Request:
    engine = Engine(target, drafter, rule("match"), FixedBudget(8), Scheduler(slots=1))
    sequence = request(temperature, tokens=tokens, seed=seed)
    engine.add(sequence)
    while not engine.idle:
        engine.step()
    assert engine.failed is None
    return sequence


def draft_tokens(oracle: Oracle, sequence: Request, count: int) -> list[int]:
    batch = Batch((sequence,), NoiseStreams(VOCAB, shared=True))
    return oracle.propose(batch, [count]).tokens[0].tolist()


# Each temperature and each acceptance once; make test-all runs all pairs.
@pytest.mark.parametrize(
    ("temperature", "acceptance"),
    [
        (0.0, 0.5),
        (1.0, 0.0),
        (1.0, 1.0),
        *(slow_case(*pair) for pair in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.5))),
    ],
)
def test_text_equals_plain_decoding(target, temperature, acceptance):
    plain = answer(target, NoDrafter(), temperature)
    oracle = Oracle(VOCAB, acceptance)
    oracle.record_answer(PROMPT, temperature, plain.seed, plain.tokens[len(PROMPT) :])
    drafted = answer(target, oracle, temperature)
    assert drafted.tokens == plain.tokens
    assert (drafted.stats.rounds < plain.stats.rounds) == (acceptance > 0)


@pytest.mark.parametrize("acceptance", [slow_case(0.3), 0.8])
def test_share_of_accepted_tokens_is_the_acceptance(target, acceptance):
    kept = verified = 0
    for seed in range(2):
        plain = answer(target, NoDrafter(), 1.0, tokens=300, seed=seed)
        oracle = Oracle(VOCAB, acceptance)
        oracle.record_answer(PROMPT, 1.0, seed, plain.tokens[len(PROMPT) :])
        stats = answer(target, oracle, 1.0, tokens=300, seed=seed).stats
        kept += stats.accepted
        # A round that accepted all its draft tokens verified no more; every other
        # round also verified the one that it rejected.
        full = stats.accepted_at[7]
        verified += stats.accepted + stats.rounds - full
    share = kept / verified
    spread = math.sqrt(acceptance * (1 - acceptance) / verified)
    # the last round of a text may have had no room for draft tokens
    assert abs(share - acceptance) < 3 * spread + 0.01
    assert verified > 300


def test_draft_tokens_of_a_position_depend_on_it_alone():
    oracle, text = Oracle(VOCAB, 0.5), list(range(40, 60))
    oracle.record_answer(PROMPT, 0.0, 3, text)
    whole = draft_tokens(oracle, request(0.0), 20)
    assert draft_tokens(oracle, request(0.0, *text[:5]), 8) == whole[5:13]
    right = sum(one == token for one, token in zip(whole, text, strict=True))
    assert 0 < right < len(text)


def test_unrecorded_answer_gets_no_draft_tokens():
    oracle = Oracle(VOCAB)
    oracle.record_answer(PROMPT, 0.0, 3, [1, 2, 3])
    assert draft_tokens(oracle, request(1.0), 8) == []


@pytest.mark.parametrize("acceptance", [-0.1, 1.5])
def test_acceptance_outside_0_to_1_is_refused(acceptance):
    with pytest.raises(InvalidRequest, match=r"must be in \[0, 1\]"):
        Oracle(VOCAB, acceptance)
