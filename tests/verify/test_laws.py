"""Every rule writes what the target would have written, and the suite that says so sees rules that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from foreword.types import Draft, Noise, Verdict, Verify
from foreword.verify import RULES
from foreword.verify.block import prefix_acceptance, prefix_weight
from foreword.verify.rejection import acceptance, chain_laws, chain_verdict, ratios

from .laws import Guesses, Guessing, World, bias, chi_square, chosen, drawn, plain_law, surprise

EXACT = 1e-9
VISIBLE = 0.005
"""Total variation that the suite must see."""


def dropped(world: World) -> Guesses:
    """Biased under all rules but match: a drawn token is thrown away because the drafter thinks little of it."""
    draft, likely = drawn(world)
    assert draft.probs is not None
    confident = draft.probs.gather(2, draft.tokens[..., None])[..., 0] > 0.3
    return Guesses(replace(draft, count=confident.cumprod(dim=1).sum(dim=1)), likely)


def chosen_as_if_drawn(world: World) -> Guesses:
    """Biased under all rules but match: the likeliest tokens, judged by the soft law they were not drawn from."""
    draft, likely = chosen(world)
    laws, tokens = drawn(world).draft, draft.tokens
    assert laws.probs is not None
    same = (laws.tokens == tokens).all(dim=1)
    return Guesses(replace(draft, probs=laws.probs[same]), likely)


def rejection_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: after a refusal the bonus is drawn from the target, not from what is left of it."""
    p, q = chain_laws(weights, draft)
    kept = (noise.accept[:, :-1] < acceptance(p, q, draft)).cumprod(dim=1)
    return chain_verdict(kept.sum(dim=1), p, p, noise)


def block_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased in the same way."""
    p, q = chain_laws(weights, draft)
    reach = prefix_weight(ratios(p, q, draft))
    passes = noise.accept[:, :-1] < prefix_acceptance(reach, (reach[..., None] * p - q).clamp(min=0), draft)
    accepted = (torch.arange(1, draft.nodes + 1) * passes).amax(dim=1)
    return chain_verdict(accepted, p, p, noise)


def match_longest(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: keeps the last guess whether the target drew it or not."""
    verdict = RULES["match"].verify(weights, draft, noise)
    accepted = torch.where(verdict.accepted == draft.nodes - 1, draft.nodes, verdict.accepted)
    return replace(verdict, accepted=accepted)


BIASED: list[tuple[str, Verify, Guessing, bool]] = [
    ("rejection, residual is the target", rejection_then_target, drawn, False),
    ("block, residual is the target", block_then_target, drawn, False),
    ("match, last guess kept unseen", match_longest, drawn, True),
    *(
        (f"{name}, soft law of chosen guesses", RULES[name].verify, chosen_as_if_drawn, False)
        for name in ("rejection", "block")
    ),
    *((f"{name}, unlikely draws dropped", RULES[name].verify, dropped, False) for name in ("rejection", "block")),
]

every_rule = pytest.mark.parametrize("name", RULES)
every_guess = pytest.mark.parametrize("guessing", [drawn, chosen])
every_bias = pytest.mark.parametrize(
    ("verify", "guessing", "gumbel"), [b[1:] for b in BIASED], ids=[b[0] for b in BIASED]
)


@every_rule
@every_guess
@pytest.mark.parametrize("seed", range(3))
def test_exact(name: str, guessing: Guessing, seed: int) -> None:
    rule = RULES[name]
    assert bias(rule.verify, guessing, World.random(seed, vocab=3, depth=3), rule.shares_noise) < EXACT


@every_rule
@every_guess
def test_sampled(name: str, guessing: Guessing) -> None:
    assert surprise(RULES[name].verify, guessing, World.random(7, vocab=4, depth=3)) < 1


@pytest.mark.parametrize("guessing", [dropped, chosen_as_if_drawn])
def test_match_is_exact_however_it_was_guessed(guessing: Guessing) -> None:
    rule = RULES["match"]
    assert bias(rule.verify, guessing, World.random(0, vocab=3, depth=3), rule.shares_noise) < EXACT
    assert surprise(rule.verify, guessing, World.random(7, vocab=4, depth=3)) < 1


@every_bias
def test_bias_is_seen_exactly(verify: Verify, guessing: Guessing, gumbel: bool) -> None:
    assert bias(verify, guessing, World.random(0, vocab=3, depth=3), gumbel) > VISIBLE


@every_bias
def test_bias_is_seen_in_samples(verify: Verify, guessing: Guessing, gumbel: bool) -> None:
    assert surprise(verify, guessing, World.random(7, vocab=4, depth=3)) > 1


@pytest.mark.parametrize(
    "change", [lambda law: law.argmax(), lambda law: law.argmin()], ids=["from-likeliest", "to-unlikeliest"]
)
def test_chi_square_sees_the_smallest_bias(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    law = plain_law(World.random(7, vocab=4, depth=3))
    shifted = law.clone()
    shifted[change(law)] += VISIBLE
    shifted[law.argsort()[len(law) // 2]] -= VISIBLE
    rng = torch.Generator().manual_seed(1)
    assert (shifted > 0).all()
    assert chi_square(law.multinomial(200_000, replacement=True, generator=rng), law) < 1
    assert chi_square(shifted.multinomial(200_000, replacement=True, generator=rng), law) > 1
