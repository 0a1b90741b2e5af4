"""What is drawn in one pass is what the rule draws from the law; no text goes on from a
guess that no law follows.
"""

import pytest
import torch

from foreword.sampling.logits import weights
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree, SamplingParams, Sequence
from foreword.verify import rule
from foreword.verify.verifier import Verifier

VOCAB, TEXT = 700, [1, 2, 3, 2, 9]
PARAMS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.6},
    "filters": {"temperature": 1.4, "top_k": 20, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3},
    "greedy with penalties": {"temperature": 0.0, "presence_penalty": 1.5},
}


def decided(one: Sequence, draws: NoiseStreams, tree: DraftTree, logits: torch.Tensor):
    verifier, batch, draft = (
        Verifier(rule("match"), draws),
        Batch((one,), draws),
        Draft([tree]),
    )
    distributions = verifier.distributions(batch, draft, [logits])
    assert one.error is None
    return verifier.verify(batch, draft, distributions)


def sequence(**params) -> Sequence:
    return Sequence(1, list(TEXT), 3, SamplingParams(**params), seed=7, eos=frozenset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARAMS)
def test_what_is_drawn_in_one_pass_is_what_the_rule_draws(name, dtype):
    """In C only where logits are float32."""
    one, draws = sequence(**PARAMS[name]), NoiseStreams(VOCAB, shared=True)
    logits = (2 * torch.randn(4, VOCAB)).to(dtype)
    (own,) = decided(one, draws, DraftTree(), logits[:1]).added
    # one that comes true, one that does not, and one that may
    tree = DraftTree([own, 5, own], [-1, -1, 0])
    found = decided(one, draws, tree, logits)
    distributions, draft = weights(logits, one, tree.paths), Draft([tree])
    wanted = rule("match").verify(
        distributions[None], draft, draws.verifying((one,), draft, [tree.depths])
    )
    assert (found.kept, found.added) == (wanted.kept, wanted.added)
    assert found.kept[0][0] == 0


def test_several_seeds_draw_by_the_temperature_that_was_asked_for():
    """At temperature 0.2 the likeliest token has nearly all of the law, at 2 hardly
    more than others.
    """
    logits = torch.linspace(0, 3, 8)[None]
    share = {}
    for temperature in (0.2, 2.0):
        said = []
        for seed in range(300):
            one = Sequence(
                seed,
                list(TEXT),
                3,
                SamplingParams(temperature=temperature),
                seed=seed,
                eos=frozenset(),
            )
            said += decided(
                one, NoiseStreams(8, shared=True), DraftTree(), logits
            ).added
        share[temperature] = said.count(7) / len(said)
    assert share[0.2] == pytest.approx(
        float((logits / 0.2).softmax(-1)[0, 7]), abs=0.07
    )
    assert share[2.0] == pytest.approx(
        float((logits / 2.0).softmax(-1)[0, 7]), abs=0.07
    )


def test_a_guess_that_no_law_follows_is_the_last_token():
    def forbids(text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (
            scores
            if text.shape[1] == len(TEXT)
            else torch.full_like(scores, -torch.inf)
        )

    one, draws = (
        sequence(temperature=0.7, processors=(forbids,)),
        NoiseStreams(VOCAB, shared=True),
    )
    logits = 2 * torch.randn(2, VOCAB)
    (own,) = decided(one, draws, DraftTree(), logits[:1]).added
    found = decided(one, draws, DraftTree([own], [-1]), logits)
    assert (found.kept, found.added) == ([[]], [own])
