"""Source-answer pairs for an encoder-decoder, taken or derived from chat records; no
pair depends on another.

$ python recipes/pairs.py train.jsonl.gz pairs.jsonl.gz
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated
from zlib import crc32

import typer

Pair = tuple[str, str, str]
"""Kind, source, answer."""
JSON_OF = "Extract the fields as JSON: "
ENTRY = re.compile(
    r"(?P<word>[^(]+) \((?P<kind>\w+)\): (?P<meaning>.+?)\.(?: Example: "
    r"(?P<example>.+?)\.)?"
    r"(?: Synonyms: (?P<synonyms>.+?)\.)?"
)
FIELD = re.compile(r"([A-Za-z][\w ()/-]{2,40}?) ?: ([^;]+)(?:; |$)")
OPTION = re.compile(r"--([\w-]+)(?: (?!--)(\S.*?))?(?= --|$)")
DOCSTRING = re.compile(r'\n\s+(?:"""|")(.+?)(?:\n\n.*?)?\s*(?:"""|")\n', re.DOTALL)
SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
SECOND_PERSON = {
    "i": "you",
    "i'm": "you're",
    "i've": "you've",
    "i'd": "you'd",
    "i'll": "you'll",
    "am": "are",
    "was": "were",
    "my": "your",
    "me": "you",
    "mine": "yours",
    "myself": "yourself",
}


def pairs(source: str, user: str, answer: str, system: str = "") -> Iterator[Pair]:
    """Yield the pairs of one question and its answer; many records have none."""
    if source in TAKEN:
        yield TAKEN[source], f"{system}\n{user}" if system else user, answer
    if derive := DERIVED.get(source):
        yield from derive(user, answer)


def _split(user: str, answer: str) -> Iterator[Pair]:
    whole = user.partition(": ")[2]
    yield "join", f"Join into one sentence: {answer}", whole
    yield from _damaged(whole)


def _entry(user: str, answer: str) -> Iterator[Pair]:
    line = answer.partition("\n")[0]
    if (found := ENTRY.fullmatch(line)) and crc32(user.encode()) % 4 == 0:
        yield (
            "fields",
            JSON_OF + line,
            _json({name: text for name, text in found.groupdict().items() if text}),
        )


def _facts(_: str, answer: str) -> Iterator[Pair]:
    fields = FIELD.findall(answer)
    if len(fields) > 1 and len(answer) < 400:
        yield (
            "fields",
            JSON_OF + answer,
            _json({name.strip().lower(): value.strip() for name, value in fields}),
        )
    else:
        yield from _damaged(answer)


def _command(user: str, answer: str) -> Iterator[Pair]:
    line = " ".join(answer.replace("\\\n", " ").split())
    options = OPTION.findall(line)
    if options and len(line) < 400 and "\n\n" not in answer:
        fields = {"command": line.partition(" --")[0]} | {
            name: value.strip("\"'") for name, value in options
        }
        yield "fields", JSON_OF + line, _json(fields)
    about = user.partition(": ")[2].partition(". ")[0]
    yield "summary", f"Summarize the command: {line[:500]}", about


def _article(user: str, answer: str) -> Iterator[Pair]:
    passages = list(_passages(answer, 900))
    if passages and len(answer) > 150:
        yield (
            "question",
            f"Write the question that this text answers: {passages[0]}",
            user,
        )
        sentences = SENTENCE.split(passages[0])
        if len(sentences) > 2:
            yield "summary", f"Summarize in one sentence: {passages[0]}", sentences[0]
    for passage in list(_passages(answer, 240))[:3]:
        yield from _damaged(passage)


def _answered(user: str, answer: str) -> Iterator[Pair]:
    if "\n\n" in user:
        yield "summary" if "ummar" in user else "passage", user, answer
    for passage in list(_passages(answer, 240))[:2]:
        yield from _damaged(passage)


def _page(_: str, answer: str) -> Iterator[Pair]:
    title, _, rest = answer.partition("\n\n")
    if rest:
        yield "summary", f"Summarize the page: {rest[:600]}", title


def _function(_: str, answer: str) -> Iterator[Pair]:
    code = answer.removeprefix("```python\n").removesuffix("```")
    if found := DOCSTRING.search(code):
        bare = code[: found.start()] + "\n" + code[found.end() :]
        yield (
            "summary",
            f"Summarize the function: {bare[:600]}",
            " ".join(found[1].split()),
        )


def _said(user: str, _: str) -> Iterator[Pair]:
    text = user.partition(": ")[2] or user
    words = text.split()
    turned = [_turned(word) for word in words]
    if words != turned and not {"you", "your", "you're"} & {
        word.lower().strip(".,?!") for word in words
    }:
        yield "person", f"Rewrite in the second person: {text}", " ".join(turned)


def _turned(word: str) -> str:
    bare = word.rstrip(".,?!;")
    other = SECOND_PERSON.get(bare.lower())
    if other is None:
        return word
    return (
        other.capitalize()
        if bare[0].isupper() and bare not in ("I", "I'm", "I've", "I'd", "I'll")
        else other
    ) + (word[len(bare) :])


def _damaged(text: str) -> Iterator[Pair]:
    """Yield the text to be restored, from letters without punctuation or with spelling
    errors.
    """
    text = " ".join(text.split())
    if not 40 <= len(text) <= 420:
        return
    draw = random.Random(crc32(text.encode()))
    if draw.random() < 0.5:
        bare = " ".join(re.sub(r"[^\w\s'%-]", " ", text).lower().split())
        yield "punctuation", f"Restore punctuation and capitals: {bare}", text
    else:
        words = [
            _misspelt(word, draw) if draw.random() < 0.25 else word
            for word in text.split(" ")
        ]
        yield "spelling", f"Correct the spelling: {' '.join(words)}", text


def _misspelt(word: str, draw: random.Random) -> str:
    if len(word) < 4 or not word.isalpha():
        return word
    at = draw.randrange(1, len(word) - 1)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: word[:at] + word[at + 1 :],
        lambda: word[:at] + word[at] + word[at:],
        lambda: word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        lambda: word[:at] + draw.choice("aeioutrnsl") + word[at + 1 :],
    )
    return draw.choice(kinds)()


def _passages(text: str, longest: int) -> Iterator[str]:
    """Yield whole sentences, as many together as fit."""
    held = ""
    for sentence in SENTENCE.split(" ".join(text.split())):
        if held and len(held) + len(sentence) + 1 > longest:
            yield held
            held = ""
        held = f"{held} {sentence}".strip()
        if len(held) > longest:
            held = ""
    if held:
        yield held


def _json(fields: dict[str, str]) -> str:
    return json.dumps(fields, ensure_ascii=False)


TAKEN = {
    "wiki_split": "split",
    "disfl_qa": "fluent",
    "en_de": "translation",
    "restaurant8k": "slots",
    "sgd_call": "call",
}
DERIVED: dict[str, Callable[[str, str], Iterator[Pair]]] = {
    "wiki_split": _split,
    "wordset": _entry,
    "factbook": _facts,
    "aws_cli": _command,
    "medquad": _article,
    "dolly15k": _answered,
    "tldr": _page,
    "python_stdlib": _function,
    "sgd_chat": _said,
    "clinc150": _said,
    "banking77": _said,
}


def main(
    corpus: Annotated[Path, typer.Argument(help="Chat records, .jsonl.gz.")],
    out: Annotated[Path, typer.Argument(help="File for the pairs, .jsonl.gz.")],
) -> None:
    """Write the pairs of a corpus as records of one question and one answer."""
    counts: dict[str, int] = {}
    with (
        gzip.open(corpus, "rt", encoding="utf-8") as lines,
        gzip.open(out, "wt", encoding="utf-8") as file,
    ):
        for line in lines:
            record = json.loads(line)
            turns = record["messages"]
            system = turns[0]["content"] if turns[0]["role"] == "system" else ""
            user, answer = (
                one["content"] for one in (turns[1:3] if system else turns[:2])
            )
            for kind, source, target in pairs(record["source"], user, answer, system):
                messages = [
                    {"role": "user", "content": source},
                    {"role": "assistant", "content": target},
                ]
                file.write(
                    json.dumps(
                        {"messages": messages, "source": kind}, ensure_ascii=False
                    )
                    + "\n"
                )
                counts[kind] = counts.get(kind, 0) + 1
    typer.echo(", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items())))


if __name__ == "__main__":
    typer.run(main)
