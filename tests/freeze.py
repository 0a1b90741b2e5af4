"""Hashes of what the library generates and of its public names, so that a refactoring can prove that it changed none.

    make freeze     before the change, on the same machine
    make frozen     after it; names every difference, and exits with 1 where there is one

Tokens: one prompt of each source at three temperatures, drafted by every method under `match` and by those that draw
under every other rule, with a fixed number of draft tokens; and the first tokens of `foreword.LLM()`. Beside the tokens
of each run stands how many tokens were drafted and accepted, where that does not depend on measured time.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import foreword
import running
from foreword.bench.prompts import load
from foreword.draft import METHODS
from foreword.types import SamplingParams
from foreword.verify import RULES

FILE = Path(__file__).parents[1] / ".frozen.json"
TEMPERATURES = (0.0, 0.7, 1.3)
LENGTH = 24
"""Tokens of an answer."""
NODES = 6
"""Draft tokens of a round."""
TIMED = frozenset({"fuse", "cascade"})
"""Methods that choose what to draft by measured seconds: their tokens are fixed under `match`, their drafts are not."""
DRAWS = ("lm", "eagle")
"""Methods that the other rules are tried with: the tree of a model, and that of a head."""


def hashed(value: object) -> str:
    """Return a short hash of the value's JSON."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def requests() -> list[running.Request]:
    """Return one bundled prompt of each source, at every temperature. Half of the drawn ones are filtered."""
    first = {prompt.source: prompt for prompt in reversed(load("in-domain"))}
    texts = [first[source].messages[-1]["content"] for source in sorted(first)]
    ids = [tuple(running.tokenizer()(text)["input_ids"])[:200] for text in texts]
    return [
        running.Request(
            tokens,
            SamplingParams(
                temperature=heat,
                top_p=0.9 if heat and i % 2 else 1.0,
                seed=i,
                max_tokens=LENGTH,
                ignore_eos=True,
            ),
        )
        for heat in TEMPERATURES
        for i, tokens in enumerate(ids)
    ]


def generated(name: str, rule: str, dtype: str) -> dict[str, str]:
    """Return hashes of the tokens, and of the counts of draft tokens, of all requests in company."""
    loop = running.engine(running.target(dtype), running.drafter(name, dtype), NODES, rule=rule)
    asked = requests() if rule == "match" else requests()[1::3]
    answers = running.finish(loop, asked)
    found = {"tokens": hashed([answer.tokens for answer in answers])}
    if name not in TIMED:
        stats = [answer.sequence.stats for answer in answers]
        found["drafts"] = hashed([(one.drafted, one.accepted) for one in stats])
    return found


def members(value: object) -> Iterator[tuple[str, str]]:
    """Yield the signature of a public function, or those of the public members of a class."""
    if inspect.isclass(value):
        names = [name for name in dir(value) if not name.startswith("_") or name == "__init__"]
        for name in names:
            member = inspect.getattr_static(value, name)
            called = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield name, str(inspect.signature(called)) if inspect.isfunction(called) else type(member).__name__
    else:
        yield "", str(inspect.signature(value)) if callable(value) else repr(value)


def public() -> dict[str, str]:
    """Return what a user can import from `foreword`, each name with its signature."""
    return {
        f"{name}.{member}".rstrip("."): signature
        for name in foreword.__all__
        for member, signature in members(getattr(foreword, name))
    }


def bundled() -> str:
    """Return a hash of what the bundled models say through the public class, greedy and drawn."""
    with foreword.LLM() as llm:
        params = [SamplingParams(temperature=heat, seed=7, max_tokens=48) for heat in TEMPERATURES]
        answers = llm.generate(["Write a short story about a dragon."] * len(params), params)
    return hashed([answer.tokens for answer in answers])


def frozen() -> dict[str, object]:
    """Return everything that must stay."""
    found: dict[str, object] = {"bundled": bundled(), "public": public()}
    runs = [(name, "match", "bfloat16") for name in METHODS]
    runs += [(name, "match", "float32") for name in ("none", "lm", "ngram")]
    runs += [(name, rule, "bfloat16") for rule in RULES if rule != "match" for name in DRAWS]
    with tempfile.TemporaryDirectory() as folder:
        running.common.append(Path(folder))
        for name, rule, dtype in runs:
            sys.stderr.write(f"{name} {rule} {dtype}\n")
            found[f"{name} {rule} {dtype}"] = generated(name, rule, dtype)
    return found


def differences(old: object, new: object, path: str = "") -> Iterator[str]:
    """Yield a line for everything that is not equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key, "absent"), new.get(key, "absent"), f"{path}/{key}")
    elif old != new:
        yield f"{path[1:]}: {old} -> {new}"


def main(what: str) -> int:
    if what == "write":
        FILE.write_text(json.dumps(frozen(), indent=1) + "\n", encoding="utf-8")
        return 0
    if not FILE.exists():
        sys.stderr.write(f"cannot compare: there is no {FILE.name}. Run `make freeze` before the change\n")
        return 2
    changed = list(differences(json.loads(FILE.read_text(encoding="utf-8")), frozen()))
    sys.stdout.write("\n".join(changed or ["nothing changed"]) + "\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else "check"))
