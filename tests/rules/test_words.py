"""One word for each idea: source, README and pages use docs/glossary.md's."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "packages"
INSTEAD = {
    "a draft token; to propose": "guess guesses guessed guessing guesser",
    "a distribution": "law laws lawful",
    "a probability": "chance chances",
    "to verify": "judge judges judged",
    "the batch, the other sequences": "company",
    "to predict": "foresee foresees foreseen foretell",
    "to read hidden states": "hear hears heard overhear listen listens",
    "to apply the LM head": "speak speaks spoken mouth",
    "to compute; a hidden state": "think thinks thought thoughts",
    "a loss budget; a back-off": "purse patience",
    "an invalid row": "astray",
    "a child; the first chain": "offspring trunk",
    "what is trained, its options, its samples": "pupil lesson lessons student students exam exams",
    "an entry of a benchmark": "contender contenders",
    "a noun": "nobody somebody whoever",
}
"""What to say -> the words that the field does not use for it."""
BANNED = re.compile(
    rf"(?<![A-Za-z])(?:{'|'.join(' '.join(INSTEAD.values()).split())})(?![A-Za-z])",
    re.IGNORECASE,
)
STILTED = re.compile(
    r"\b(?:of which|those (?:of|that)|is no (?!longer)[\w{]|in few bits|as far as"
    r"|in the place of).{0,40}",
    re.IGNORECASE,
)
"""Relative clauses without a noun: name it; and "is no X": write "is not an X"."""
FRAGMENT = re.compile(r'\A"""Provides|"""(?:Of|As of|Its) ')
"""Docstrings that are not a sentence, and modules that "provide"."""
BREAKS = re.compile(r"""(?:"?\s*\n\s*(?:[a-z]?["']|#)?|\s)+""")
"""Where a sentence goes on: a space, the next line, the next part of a string."""
FILES = sorted(
    [
        *SOURCE.rglob("*.py"),
        *SOURCE.rglob("*.[ch]"),
        *(
            path
            for top in ("tests", "recipes", "examples")
            for path in (ROOT / top).rglob("*.py")
        ),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
    ]
)
TAGS = re.compile(r"</?think>|\[/?THINK\]|\.listen\(|pirate speak", re.IGNORECASE)
"""Markers of reasoning are the models' words, and one method is of sockets."""
LIMIT = 600
"""Words of the README: what it is, two commands, five lines, one table."""


def test_files_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BANNED.search(TAGS.sub("", line).replace("_", " "))
    ]
    assert found == []


def test_source_is_in_plain_sentences() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in sorted(SOURCE.rglob("*.py"))
        for sentence in STILTED.findall(BREAKS.sub(" ", path.read_text("utf-8")))
    ]
    assert found == []


def test_docstrings_can_be_understood_alone() -> None:
    found = [path for path in FILES if FRAGMENT.search(path.read_text("utf-8"))]
    assert found == []


def test_files_are_named_in_the_words_of_the_field() -> None:
    names = [path.relative_to(ROOT).as_posix() for path in FILES]
    assert [name for name in names if BANNED.search(re.sub(r"[_/.]", " ", name))] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= LIMIT


def test_the_glossary_names_each_word_once() -> None:
    rows = re.findall(
        r"^\| ([^|]+?) \|",
        (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    words = [word for row in rows[1:] for word in row.split(", ")]
    assert len(words) == len(set(words))
    assert len(rows) > 30
