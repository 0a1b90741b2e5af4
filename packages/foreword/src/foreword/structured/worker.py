"""A process that compiles grammars for another one, which may end it at any time.

Standard input has lines of JSON: first (pieces, spaced) of each vocabulary, then
(tagged, name, text) of each form. Standard output gets, for each form, a line "1 BYTES"
and the grammar, or "0 BYTES" and why it is refused.
"""

import json
import os
import sys
from contextlib import suppress

from foreword.errors import ForewordError
from foreword.structured.forms import Vocabulary

LARGEST = 2**26
"""Characters. Largest grammar as JSON; reading it takes five times as many bytes."""
MEMORY = 2 * 2**30
"""Bytes. Most memory of the process; libraries take 0.3 GB of it."""
SECONDS = 120
"""Seconds of processor time for one form, should the other process be gone."""
NICE = 5
"""Lower priority than that of rounds."""


def main() -> None:
    """Answer until standard input ends."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries must not print into the answers
    with suppress(AttributeError):  # Windows
        os.nice(NICE)
    _limit("RLIMIT_DATA", MEMORY)
    vocabularies: list[Vocabulary] = []
    for line in source:
        if not vocabularies:
            vocabularies = [
                Vocabulary(_bytes(pieces), spaced=spaced)
                for pieces, spaced in json.loads(line)
            ]
            continue
        tagged, name, text = json.loads(line)
        _limit("RLIMIT_CPU", int(sum(os.times()[:2])) + SECONDS)
        accepted, answer = _answer(vocabularies[tagged], name, text)
        content = answer.encode()
        target.write(b"%d %d\n" % (accepted, len(content)) + content)
        target.flush()


def _bytes(pieces: list[str]) -> list[bytes]:
    return [piece.encode("latin-1") for piece in pieces]


def _answer(vocabulary: Vocabulary, name: str, text: str) -> tuple[bool, str]:
    try:
        compiled = vocabulary.compiled(name, text).serialize_json()
    except ForewordError as error:
        return False, str(error)
    except MemoryError:
        return (
            False,
            (
                f"cannot follow this {name}: compiling it takes too much memory. Use "
                "one with fewer parts"
            ),
        )
    if len(compiled) > LARGEST:
        return (
            False,
            (
                f"cannot follow this {name}: compiled it is too large. Use one with "
                "fewer parts"
            ),
        )
    return True, compiled


def _limit(name: str, most: int) -> None:
    """Set a limit of this process, where there is such a one."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        kind = getattr(resource, name)
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
