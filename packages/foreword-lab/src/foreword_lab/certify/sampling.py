"""Sampled tokens of the user's pair against the target's own distribution."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.api.llm import LLM
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model, Read
from foreword.types import (
    Completion,
    SamplingParams,
)
from foreword_lab.certify.betting.rows import Rows
from foreword_lab.certify.betting.wealth import ERROR, Ledger
from foreword_lab.certify.cases import (
    TEXTS,
    Case,
    encoded,
)
from foreword_lab.certify.drafting import Drafting
from foreword_lab.certify.remote.ask import Scored
from foreword_lab.certify.remote.sampled import outcome
from foreword_lab.certify.remote.texts import Memory
from foreword_lab.certify.report import Check
from foreword_lab.certify.runs import (
    BATCH,
    TOGETHER,
    run,
)

LISTED = 50
"""Tokens. Likeliest ones, each with its own probability in the test."""
LENGTH = 8
"""Tokens. Length of a sample."""
NODES = 3
"""Draft tokens a round."""
HEATS = (1.0, 0.7, 1.3)
"""Temperatures of samples, by turns."""

Pair = tuple[Drafting, str]
"""A method and a rule."""


class Sampling:
    """Samples of each method under each rule.

    Probabilities come from one forward of the target over the whole text, apart from
    any drafting. A draft model, if a method has one, orders the tokens of all.
    """

    def __init__(
        self,
        llm: LLM,
        pairs: Sequence[Pair],
        seed: int,
    ) -> None:
        self.pairs = pairs
        self.samples = [0] * len(pairs)
        self.accepted = [0] * len(pairs)
        """Draft tokens: the samples of a pair without them prove nothing."""
        drafters = (drafting.drafter for drafting, _ in pairs)
        # heads read the target's states, and other vocabularies other ids
        models = (one for one in drafters if type(one) is LanguageModelDrafter)
        self._draft = next(models, None)
        self.ledger = Ledger(len(pairs), drafted=self._draft is not None)
        self._llm = llm
        self._seed = seed
        self._memory = Memory()
        self._prompts = [encoded(llm, text) for text in TEXTS]

    def sample(self, index: int) -> None:
        """Draw one batch of a method and a rule."""
        drafting, rule = self.pairs[index]
        # no seed twice: equal noise would make the samples depend on each other
        first = sum(self.samples)
        cases = [self._case(first + number) for number in range(BATCH)]
        speculator = drafting.speculator(self._llm, rule, NODES)
        answers = run(self._llm, cases, speculator, [TOGETHER])
        rows = []
        for case, answer in zip(cases, answers, strict=True):
            rows += self._rows(case, answer)
            self.accepted[index] += answer.stats.accepted
        self.samples[index] += len(cases)
        self.ledger.take(Rows.joined(rows), index)

    def check(self) -> Check:
        """Return the outcome."""
        evidence = self._evidence()
        if not any(self.accepted):
            what = f"no draft token was accepted in {sum(self.samples):,} samples"
            return Check("sampled tokens", "cannot say", what, evidence)
        source = f"of {len(self.pairs)} pairs of method and rule"
        return outcome(self.ledger, source, evidence)

    def _case(self, number: int) -> Case:
        # one token more, or the last one would never be drafted
        params = SamplingParams(
            temperature=HEATS[number % len(HEATS)],
            seed=self._seed + number,
            max_tokens=LENGTH + 1,
            ignore_eos=True,
        )
        turn = number // len(HEATS)
        return Case(self._prompts[turn % len(self._prompts)], params)

    def _rows(
        self,
        case: Case,
        answer: Completion,
    ) -> list[dict[str, Any]]:
        tokens = answer.tokens[:LENGTH]
        heat = case.params.temperature
        text = [*case.prompt, *tokens[:-1]]
        keep = len(tokens)
        logits = self._read(self._llm.target, text, keep)
        rows = _shares(logits, heat)
        scored = [*map(_scored, rows, tokens)]
        drafts = None
        if self._draft is not None:
            logits = self._read(self._draft.model, text, keep)
            rows = _shares(logits, heat)
            drafts = [*map(_listed, rows, scored)]
        prompt = f"{heat} {case.prompt}"
        return self._memory.rows(prompt, scored, 1.0, drafts)

    def _read(
        self, model: Model, text: list[int], keep: int
    ) -> Float[Tensor, "keep vocab"]:
        """Return the logits of the last places, by the target or its draft model."""
        (request,) = self._llm.session.prepare(text, None)
        reads = [Read(request.id, 0, text, keep=keep)]
        with self._llm.session.locked():
            model.open(request.id, len(text))
            try:
                if self._draft is not None and model is self._draft.model:
                    return self._draft.logits(reads)
                return model.read(reads)
            finally:
                model.close(request.id)

    def _evidence(self) -> dict[str, Any]:
        ledger = self.ledger
        counts = zip(self.pairs, self.samples, self.accepted, strict=True)
        return {
            "tokens": ledger.tokens,
            "largest log wealth": round(ledger.highest, 2),
            "probability of accusing an exact pair": ERROR,
            "samples": {
                f"{drafting.name}, {rule}": {
                    "samples": samples,
                    "accepted draft tokens": accepted,
                }
                for (drafting, rule), samples, accepted in counts
            },
        }


def pairs(
    draftings: Sequence[Drafting],
    rules: Sequence[str],
) -> list[Pair]:
    """Return each method that samples draft tokens with each rule, and one method that
    chooses them: rules treat all of the latter alike.
    """
    draws = [one for one in draftings if one.drafter.about.draws]
    chooses = [one for one in draftings if not one.drafter.about.draws]
    return [*product([*draws, *chooses[:1]], rules)]


def _shares(
    logits: Float[Tensor, "rows vocab"], heat: float
) -> Float[Tensor, "rows vocab"]:
    return (logits.to(torch.float64) / heat).softmax(-1)


def _scored(
    shares: Float[Tensor, "vocab"],
    token: int,
) -> Scored:
    """Return a token as if a server had listed the likeliest ones."""
    likeliest = shares.topk(min(LISTED, len(shares)))
    logs = likeliest.values.clamp(min=1e-300).log().tolist()
    names = [*map(str, likeliest.indices.tolist())]
    logprob = float(shares[token].clamp(min=1e-300).log())
    return Scored(str(token), logprob, tuple(zip(names, logs, strict=True)))


def _listed(
    shares: Float[Tensor, "vocab"],
    token: Scored,
) -> dict[str, float]:
    """Return the probabilities of the tokens listed at a place."""
    names = [name for name, _ in token.top]
    masses = shares[[*map(int, names)]].tolist()
    return dict(zip(names, masses, strict=True))
