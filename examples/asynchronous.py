"""Stream from several tasks in one event loop, each with its own method; all share the
rounds of one model.

python examples/asynchronous.py [TARGET [DRAFT]]
"""

import asyncio
import sys

from foreword import LLM, AsyncLLM, SamplingParams

target, draft = [*sys.argv[1:3], None, None][:2]
CHOICES = ("none", "ngram", "suffix", None)


async def main() -> None:
    async with AsyncLLM(LLM(target, draft=draft)) as llm:

        async def read(method: str | None) -> str:
            params = SamplingParams(
                temperature=0.8, seed=3, max_tokens=24, method=method
            )
            return "".join(
                [delta.text async for delta in llm.stream("The old harbour", params)]
            )

        texts = await asyncio.gather(*map(read, CHOICES))
        for method, text in zip(CHOICES, texts, strict=True):
            print(f"{method or llm.llm.method}: The old harbour{text!r}")
        print(f"the same text: {len(set(texts)) == 1}")


asyncio.run(main())
