"""Answers that follow a JSON schema or a regular expression; drafting changes their
speed and no token.
"""

import json

from foreword import LLM, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Paris", "Rome", "Berlin"]},
    },
    "required": ["name", "age", "city"],
}
llm = LLM(nodes=6)
params = SamplingParams(json_schema=PERSON, seed=1, max_tokens=64)
plain = SamplingParams(json_schema=PERSON, seed=1, max_tokens=64, method="none")

answer = llm.generate("Tell me about someone:", params)[0]
print(answer.text)
print(
    f"its keys: {', '.join(json.loads(answer.text))}; "
    f"{answer.stats.tokens_per_pass:.2f} tokens for each pass"
)
print(
    "the same text without drafts:",
    llm.generate("Tell me about someone:", plain)[0].tokens == answer.tokens,
)

phone = llm.generate("Call me:", SamplingParams(regex=r"[0-9]{3}-[0-9]{4}", seed=1))[0]
print(f"Call me: {phone.text}")
