"""A target that is a table of logits, and the loop around a drafter."""

from dataclasses import dataclass, field

import torch

from foreword.draft.base import Drafter
from foreword.sampling.draw import drawn_tokens
from foreword.sampling.noise import extended
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, Request, SamplingParams, Scores, Verdict
from foreword.verify.match import follow


@dataclass
class Markov:
    """The logits [vocab, vocab] after each token, and what a round needs."""

    table: torch.Tensor
    trees: bool = True
    draws: NoiseStreams = field(init=False)
    drafts: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = NoiseStreams(len(self.table), shared=True)

    def request(
        self,
        tokens: list[int],
        name: int = 0,
        *,
        temperature: float = 1.0,
        tenant: str = "",
    ) -> Request:
        """A request of that id and seed."""
        params = SamplingParams(
            temperature=temperature, tenant=tenant, max_tokens=10_000
        )
        return Request(name, list(tokens), len(tokens), params, seed=name)

    def batch(self, *requests: Request) -> Batch:
        return Batch(requests, self.draws, self.trees)

    def round(
        self, drafter: Drafter, requests: list[Request], nodes: int
    ) -> list[list[int]]:
        """One round of all sequences; returns what each wrote."""
        batch = self.batch(*requests)
        draft = drafter.propose(batch, [nodes] * len(requests))
        self.drafts.append(draft)
        logits, kept, added = [], [], []
        for row, request in enumerate(requests):
            logits.append(self.table[[request.tokens[-1], *draft.trees[row].tokens]])
            key, tree = self.draws.key(request), draft.trees[row]
            keys = [None if key is None else extended(key, p) for p in tree.paths]
            draws = [(request.params.temperature, own) for own in keys]
            path, token = follow(drawn_tokens(logits[-1], draws).tolist(), tree)
            kept.append(path)
            added.append(token)
        verdict = Verdict(kept, added, draft.nodes)
        drafter.observe(batch, draft, verdict, Scores(tuple(logits)))
        said = verdict.said(draft)
        for request, tokens in zip(requests, said, strict=True):
            request.tokens += tokens
            request.rounds += 1
        return said


def noisy(vocab: int, spread: float = 1.0, seed: int = 0) -> torch.Tensor:
    """A random table of logits."""
    return spread * torch.randn(
        vocab, vocab, generator=torch.Generator().manual_seed(seed)
    )
