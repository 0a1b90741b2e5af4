"""Serve many requests at once, each with its own parameters; the batch never changes a
text.

python examples/batch.py [TARGET [DRAFT]]
"""

import sys

from foreword import LLM, SamplingParams

target, draft = [*sys.argv[1:3], None, None][:2]
llm = LLM(target, draft=draft)
prompts = [
    "The old harbour",
    "In mathematics, a group",
    "The band released",
    "She was born in",
    "The species is",
]

shared = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=24)
together = llm.generate(prompts, shared)
for prompt, completion in zip(prompts, together, strict=True):
    print(
        f"{prompt} |{completion.text!r} [{completion.finish_reason}; "
        f"{completion.stats.tokens_per_pass:.1f} a pass]"
    )

alone = [llm.generate(prompt, shared)[0] for prompt in prompts]
same = all(
    one.tokens == other.tokens for one, other in zip(alone, together, strict=True)
)
print(f"\nthe same texts one by one: {same}\n")

for params in (
    SamplingParams(temperature=0.5, seed=1, max_tokens=24),
    SamplingParams(temperature=1.2, top_p=0.9, seed=1, max_tokens=24),
    SamplingParams(
        temperature=1.0, repetition_penalty=1.3, stop=(".",), seed=1, max_tokens=24
    ),
):
    completion = llm.generate(prompts[0], params)[0]
    print(
        f"temperature {params.temperature}, top_p {params.top_p}: "
        f"{prompts[0]}{completion.text!r}"
    )
