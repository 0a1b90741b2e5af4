"""Complete a text, then stream another one and show the origin of each token. Give your
own models to use them.

python examples/quickstart.py [TARGET [DRAFT]]
"""

import sys

from foreword import LLM, SamplingParams

target, draft = [*sys.argv[1:3], None, None][:2]
llm = LLM(target, draft=draft)

params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=48)
completion = llm.generate("The river runs through", params)[0]
print(f"The river runs through{completion.text}")
print(
    f"[{len(completion.tokens)} tokens, {completion.stats.tokens_per_pass:.2f} for "
    "each pass of the target]\n"
)

marks = {"accepted": "+", "bonus": "."}
origins = ""
print("The first railway", end="")
for delta in llm.stream(
    "The first railway", SamplingParams(temperature=0, max_tokens=48)
):
    print(delta.text, end="", flush=True)
    origins += "".join(marks[origin] for origin in delta.origins)
print(f"\n[{origins}]  + is an accepted draft token, . is the target's own")
