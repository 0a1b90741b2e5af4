"""Tokens of the bundled models: every method under `match`, and sampled ones under
every rule, at three temperatures. Counts of draft tokens stand beside them where time
plays no part.
"""

import sys

import foreword
import running
from foreword.draft import METHODS
from foreword.prompts import load
from foreword.types import SamplingParams
from foreword.verify import RULES
from frozen import hashed

TEMPERATURES = (0.0, 0.7, 1.3)
LENGTH = 24
"""Tokens of an answer."""
NODES = 6
"""Draft tokens of a round."""
TIMED = frozenset({"cascade"})
"""Methods that draft by measured seconds: only their tokens are fixed."""
SAMPLING = ("lm", "eagle")
"""Methods that the other rules are tried with: a draft model's tree, a head's."""


def requests() -> list[running.Case]:
    """Return one bundled prompt of each source, at every temperature; some filtered."""
    first = {prompt.source: prompt for prompt in reversed(load("in-domain"))}
    texts = [first[source].messages[-1]["content"] for source in sorted(first)]
    ids = [tuple(running.tokenizer()(text)["input_ids"])[:200] for text in texts]
    return [
        running.Case(
            tokens,
            SamplingParams(
                temperature=temperature,
                top_p=0.9 if temperature and i % 2 else 1.0,
                seed=i,
                max_tokens=LENGTH,
                ignore_eos=True,
            ),
        )
        for temperature in TEMPERATURES
        for i, tokens in enumerate(ids)
    ]


def generated(name: str, rule: str, dtype: str) -> dict[str, str]:
    """Return hashes of the tokens and draft counts of all requests in one batch."""
    loop = running.engine(
        running.target(dtype), running.drafter(name, dtype), NODES, rule=rule
    )
    wanted = requests() if rule == "match" else requests()[1::3]
    answers = running.finish(loop, wanted)
    found = {"tokens": hashed([answer.tokens for answer in answers])}
    if name not in TIMED:
        stats = [answer.request.stats for answer in answers]
        found["drafts"] = hashed([(one.drafted, one.accepted) for one in stats])
    return found


def default() -> str:
    """Return a hash of the answers of `foreword.LLM()`, greedy and sampled."""
    with foreword.LLM() as llm:
        params = [
            SamplingParams(temperature=heat, seed=7, max_tokens=48)
            for heat in TEMPERATURES
        ]
        answers = llm.generate(
            ["Write a short story about a dragon."] * len(params), params
        )
    return hashed([answer.tokens for answer in answers])


def record() -> dict[str, object]:
    """Return the hashes of all runs."""
    runs = [(name, "match", "bfloat16") for name in METHODS]
    runs += [(name, "match", "float32") for name in ("none", "lm", "ngram")]
    runs += [
        (name, rule, "bfloat16")
        for rule in RULES
        if rule != "match"
        for name in SAMPLING
    ]
    found: dict[str, object] = {"default": default()}
    for name, rule, dtype in runs:
        sys.stderr.write(f"{name} {rule} {dtype}\n")
        found[f"{name} {rule} {dtype}"] = generated(name, rule, dtype)
    return found
