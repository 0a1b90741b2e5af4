"""How often a draft model's best token is the target's, where both share their noise, by
the factor `a` of a log q + G (docs/trees.md):

    python recipes/agreement.py                       # the bundled pair
    python recipes/agreement.py TARGET DRAFT PROMPTS  # files or folders, and a .jsonl
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict

import torch
import typer
from torch import Tensor

from foreword import LLM, SamplingParams, bundled
from foreword.model import Read
from foreword.prompts import load

FACTORS = (0.9, 1.0, 1.1, 1.2, 1.5)
DRAWS = 200
"""Rows of noise for each token."""
LIKELIEST = 192
"""Tokens of each model that can be the best one; others are too unlikely to count."""
PROMPTS, TOKENS = 30, 96


def log_probs(llm: LLM, tokens: list[int], count: int, heat: float) -> Tensor:
    """Return the log-distributions, (count, vocab), after the last `count` tokens."""
    model, request = llm.engine.target, 1_000_000
    model.open(request, len(tokens))
    logits = model.read([Read(request, 0, tokens, keep=count)])
    model.close(request)
    return (logits.float() / heat).log_softmax(-1)


def agreement(
    target: Tensor, draft: Tensor, dice: torch.Generator
) -> dict[float, float]:
    """Return, by factor, how often the best tokens of two log-distributions agree."""
    best = [one.topk(LIKELIEST).indices for one in (target, draft)]
    tokens = torch.cat(best).unique()
    uniform = torch.rand(DRAWS, len(tokens), generator=dice).clamp_min(1e-30)
    noise = -(-uniform.log()).log()
    drawn = (target[tokens] + noise).argmax(-1)
    agrees = {}
    for factor in FACTORS:
        drafted = (factor * draft[tokens] + noise).argmax(-1)
        agrees[factor] = (drafted == drawn).float().mean().item()
    return agrees


def main(target: str, draft: str, kind: str) -> None:
    """Print the agreement at temperatures 1 and 0.7, with 95% intervals over tokens."""
    pair = [LLM(source, method="none") for source in (target, draft)]
    prompts = load(kind)
    random.Random(2).shuffle(prompts)
    for heat in (1.0, 0.7):
        by_factor = defaultdict[float, list[float]](list)
        for seed, prompt in enumerate(prompts[:PROMPTS]):
            params = SamplingParams(temperature=heat, max_tokens=TOKENS, seed=seed)
            answer = pair[0].chat(list(prompt.messages), params).tokens
            text = [*pair[0].render(list(prompt.messages)), *answer][:-1]
            rows = [log_probs(llm, text, len(answer), heat) for llm in pair]
            vocab = min(one.shape[1] for one in rows)
            dice = torch.Generator().manual_seed(seed)
            for one, other in zip(*(row[:, :vocab] for row in rows), strict=True):
                for factor, share in agreement(one, other, dice).items():
                    by_factor[factor].append(share)
        usual = torch.tensor(by_factor[1.0])
        typer.echo(f"T = {heat:g}: {len(usual)} tokens, {usual.mean():.1%} at a = 1")
        for factor, shares in by_factor.items():
            more = 100 * (torch.tensor(shares) - usual)
            width = 1.96 * more.std() / len(more) ** 0.5
            typer.echo(f"  a = {factor:g}: {more.mean():+.2f} points, +- {width:.2f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sources = [str(bundled.target()), str(bundled.draft()), "in-domain"]
    main(*(arguments + sources[len(arguments) :]))
