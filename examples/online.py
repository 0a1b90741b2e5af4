"""Train a draft model from its target while it serves. Counts tokens per pass of the
target, before and after.

python examples/online.py [PROMPTS.jsonl.gz SOURCE SHARE]    every second prompt is held out
"""

import gzip
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time

from foreword import LLM, Learning, SamplingParams

path, source, share = sys.argv[1:] or (None, None, 5.0)
words = (
    "river engine moon bread letter garden north money stone winter island king".split()
)
prompts = [
    {"messages": [{"role": "user", "content": f'Define the word "{word}".'}]}
    for word in words
]
if path:
    prompts = list(
        map(json.loads, gzip.decompress(Path(path).read_bytes()).splitlines())
    )
these = [record for record in prompts if record.get("source") == source][:240]
others = [record for record in prompts if record.get("source") != source][::40]


def serve(llm: LLM, records: list[dict], label: str, seed: int = 0) -> None:
    begun, tokens, passes = time(), 0, 0
    for number, record in enumerate(records):
        answer = llm.chat(
            record["messages"][:1], SamplingParams(seed=seed + number, max_tokens=96)
        )
        tokens, passes = (
            tokens + len(answer.tokens),
            passes + len(answer.tokens) / answer.stats.tokens_per_pass,
        )
    print(
        f"{label}: {tokens / max(1, passes):.2f} tokens per pass, {tokens} tokens in "
        f"{time() - begun:.1f} s"
    )


llm = LLM(nodes=16, learn=Learning(share=float(share)))
with TemporaryDirectory() as folder:
    for when in ("before", "after"):
        plain = LLM(nodes=16, draft=f"{folder}/draft" if when == "after" else None)
        serve(plain, these[1::2], f"held out, {when}")
        serve(plain, others, f"others, {when}")
        for turn in range(4 if when == "before" else 0):
            serve(llm, these[::2], f"learning, turn {turn + 1}", 1000 * (turn + 1))
        llm.save_draft(f"{folder}/draft") if when == "before" else print(llm.progress)
