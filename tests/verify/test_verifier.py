"""What is drawn in one pass is what the rule draws; invalid draft tokens end a text."""

import pytest
import torch

from foreword.sampling.logits import weights
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree, Noise, Request, SamplingParams
from foreword.verify import rule
from foreword.verify.verifier import Verifier

SEEDS = 200
"""A share of 0.5 is then known up to 0.035 (one standard error)."""
VOCAB, TEXT = 700, [1, 2, 3, 2, 9]
PARAMS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.6},
    "filters": {"temperature": 1.4, "top_k": 20, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3},
    "greedy with penalties": {"temperature": 0.0, "presence_penalty": 1.5},
}


def decided(one: Request, draws: NoiseStreams, tree: DraftTree, logits: torch.Tensor):
    verifier = Verifier(rule("match"), draws)
    batch = Batch((one,), draws)
    draft = Draft([tree])
    distributions = verifier.distributions(batch, draft, [logits])
    assert one.error is None
    return verifier.verify(batch, draft, distributions)


def request(**params) -> Request:
    return Request(1, list(TEXT), 3, SamplingParams(**params), seed=7, eos=frozenset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARAMS)
def test_what_is_drawn_in_one_pass_is_what_rule_draws(name, dtype):
    """In C only where logits are float32."""
    one, draws = request(**PARAMS[name]), NoiseStreams(VOCAB, shared=True)
    logits = (2 * torch.randn(4, VOCAB)).to(dtype)
    (own,) = decided(one, draws, DraftTree(), logits[:1]).added
    # one that is accepted, one that is not, and one that may
    tree = DraftTree([own, 5, own], [-1, -1, 0])
    found = decided(one, draws, tree, logits)
    distributions, draft = weights(logits, one, tree.paths), Draft([tree])
    noise = None
    if not one.params.greedy:
        noise = torch.stack([draws.drafting(one, path) for path in tree.paths])[None]
    unused = torch.zeros(1, 4)
    wanted = rule("match").verify(
        distributions[None], draft, Noise(noise, unused, unused)
    )
    assert (found.kept, found.added) == (wanted.kept, wanted.added)
    assert found.kept[0][0] == 0


def test_several_seeds_draw_by_the_temperature():
    """At temperature 0.2 the likeliest token has nearly all, at 2 hardly more."""
    logits, draws = torch.linspace(0, 3, 8)[None], NoiseStreams(8, shared=True)
    verifier, draft = Verifier(rule("match"), draws), Draft([DraftTree()] * SEEDS)
    for temperature in (0.2, 2.0):
        params = SamplingParams(temperature=temperature)
        several = [
            Request(seed, list(TEXT), 3, params, seed=seed, eos=frozenset())
            for seed in range(SEEDS)
        ]
        batch = Batch(tuple(several), draws)
        distributions = verifier.distributions(batch, draft, [logits] * SEEDS)
        added = verifier.verify(batch, draft, distributions).added
        likeliest = float((logits / temperature).softmax(-1)[0, 7])
        assert added.count(7) / SEEDS == pytest.approx(likeliest, abs=0.07)


def test_draft_token_that_no_distribution_follows_is_last_token():
    def forbids(text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        is_start = text.shape[1] == len(TEXT)
        return scores if is_start else torch.full_like(scores, -torch.inf)

    one = request(temperature=0.7, processors=(forbids,))
    draws = NoiseStreams(VOCAB, shared=True)
    logits = 2 * torch.randn(2, VOCAB)
    (own,) = decided(one, draws, DraftTree(), logits[:1]).added
    found = decided(one, draws, DraftTree([own], [-1]), logits)
    assert (found.kept, found.added) == ([[]], [own])
