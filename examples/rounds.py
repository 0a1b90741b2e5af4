"""Print every round of an answer: what was drafted, what the target accepted, and what
it added.

python examples/rounds.py [TARGET [DRAFT]]
"""

import sys

from foreword import LLM, SamplingParams

target, draft = [*sys.argv[1:3], None, None][:2]
llm = LLM(target, draft=draft, nodes=6)

params = SamplingParams(temperature=0, max_tokens=32, trace=True)
completion = llm.generate("The capital of France is", params)[0]
for number, one in enumerate(completion.rounds or [], 1):
    took = one.propose_ms + one.score_ms + one.verify_ms + one.commit_ms
    print(f"round {number}, {took:.1f} ms")
    for node, token in enumerate(one.draft):
        mark = "+" if node in one.accepted else "-"
        print(
            f"  {mark} {token.text!r} after {token.parent}: drafter "
            f"{token.draft_prob}, target {token.target_prob}"
        )
    why = f" ({one.undrafted.text})" if one.undrafted else ""
    print(f"  = {one.added.text!r}, a {one.added.kind} token{why}")
print(
    f"{len(completion.tokens)} tokens in {completion.stats.rounds} rounds: "
    f"{completion.text!r}"
)
