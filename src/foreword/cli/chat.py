"""`foreword chat`: a conversation in the terminal. Knows lines and commands; knows nothing about models' insides."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.bundles import Driving, Guessing, Sampling, bundled
from foreword.disk import writable
from foreword.errors import InvalidRequest, words

if TYPE_CHECKING:
    from foreword.cli.answer import Answer
    from foreword.llm import LLM
    from foreword.types import SamplingParams

LEAVE = ("/exit", "/quit")
COMMANDS = {
    "/regen": "answers the last question again",
    "/undo": "takes the last question and its answer back",
    "/reset": "forgets the conversation",
    "/system": "TEXT tells the model so before the conversation; alone it tells nothing",
    "/seed": "N makes it repeatable; alone it forgets the seed",
    "/save": "FILE keeps the conversation, to read (.md) or for --load",
    "/stats": "says how the last answer was made",
    "/help": "lists these",
    "/exit": "leaves",
}
HELP = " · ".join(f"{name} {what}" for name, what in COMMANDS.items())
LINES = 'A line that ends in \\ goes on in the next one; lines between two """ belong together.'
QUOTES = '"' * 3
"""Begins and ends a turn of several lines."""

Load = Annotated[
    Path | None,
    typer.Option(
        "--load", help="Go on with a conversation that /save kept.", metavar="FILE",
        callback=options.checked(lambda file: file and early.data([file])),
    ),
]  # fmt: skip


@bundled
def chat(
    *,
    model: options.ModelName = None,
    loading: Driving,
    guessing: Guessing,
    learn: options.Learn = None,
    sampling: Sampling,
    system: options.System = None,
    load: Load = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
) -> None:
    """Talk with a model; it remembers the conversation.

    Ctrl-C stops an answer and keeps what is there; at the prompt it leaves. /help lists the commands. A line that ends
    in a backslash goes on in the next one.
    """
    edge.stdin()
    said = loaded(load) if load else []
    if said and said[0]["role"] == "system" and system is None:
        system = said[0]["content"]
    said = [message for message in said if message["role"] != "system"]
    from foreword import LLM

    llm = LLM(model, **loading.how, **guessing.how, learn=learn is not None)
    if not llm.tokenizer.chat_template:
        raise InvalidRequest(f"{llm.target.name} has no chat template; use `foreword generate --raw`")
    talk = Talk(llm, sampling, sampling.params(), system, show.wants_colour(color), stats, said)
    talk.run()
    if learn is not None:
        llm.save_draft(learn)
        edge.note(f"{learn} holds the draft model with what it has learnt; --draft {learn} serves it")


def loaded(file: Path) -> list[dict[str, str]]:
    """The messages that `/save` kept. Raises InvalidRequest where the file holds something else."""
    from foreword.prompts import turns

    try:
        return turns(json.loads(file.read_text(encoding="utf-8"))["messages"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"cannot load {file}: {words(error)}. Give a file that /save wrote") from error


@dataclass(slots=True)
class Talk:
    """A conversation while it goes on."""

    llm: LLM
    sampling: Sampling
    params: SamplingParams
    system: str | None
    """What every conversation begins with."""
    colour: bool
    stats: bool
    said: list[dict[str, str]] = field(default_factory=list)
    last: Answer | None = None

    def run(self) -> None:
        """Read turns until the end of input or /exit."""
        if sys.stdin.isatty():
            edge.note(f"{HELP}. {LINES}")
            if self.colour:
                show.stderr().print(show.legend())
        while (text := _turn()) is not None:
            word, _, rest = text.strip().partition(" ")
            if not word:
                continue
            if word in LEAVE:
                return
            if word.startswith("/") and "\n" not in text:
                self._obey(word, rest.strip())
                continue
            self._answer(text.strip())

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that is said, with what comes before it."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.said]

    def _obey(self, command: str, argument: str) -> None:
        if command not in COMMANDS:
            near = get_close_matches(command, COMMANDS, 1)
            hint = f"; did you mean {near[0]}?" if near else f". {HELP}"
            edge.complain(f"there is no command {command}{hint}")
            return
        {
            "/regen": self._regenerate,
            "/undo": self._undo,
            "/reset": self._reset,
            "/system": self._tell,
            "/seed": self._seed,
            "/save": self._save,
            "/stats": self._report,
            "/help": lambda _: edge.note(f"{HELP}. {LINES}"),
        }[command](argument)

    def _reset(self, _: str) -> None:
        self.said.clear()
        edge.note("the conversation is forgotten")

    def _tell(self, text: str) -> None:
        self.system = text or None
        edge.note("the model is told so from now on" if text else "the model is told nothing beforehand")

    def _report(self, _: str) -> None:
        edge.note(show.summary(self.last) if self.last else "there is no answer yet")

    def _taken_back(self) -> str | None:
        """The last question, which is taken back with its answer."""
        asked = max((place for place, turn in enumerate(self.said) if turn["role"] == "user"), default=None)
        if asked is None:
            edge.complain("there is no question yet")
            return None
        text = self.said[asked]["content"]
        del self.said[asked:]
        return text

    def _undo(self, _: str) -> None:
        if (text := self._taken_back()) is not None:
            edge.note(f"taken back: {text}")

    def _regenerate(self, _: str) -> None:
        before = [*self.said]
        if (text := self._taken_back()) is not None and not self._answer(text):
            self.said = before

    def _save(self, name: str) -> None:
        if not name:
            edge.complain("say where to: /save FILE")
            return
        file = Path(name).expanduser()
        try:
            if file.name.endswith(".md"):
                kept = "\n\n".join(f"**{turn['role']}**\n\n{turn['content']}" for turn in self.messages) + "\n"
            else:
                kept = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=1) + "\n"
            writable(file)
            file.write_text(kept, encoding="utf-8")
        except (OSError, InvalidRequest) as error:
            edge.complain(str(error))
        else:
            edge.note(f"{file} holds the conversation")

    def _seed(self, argument: str) -> None:
        try:
            self.params = replace(self.params, seed=int(argument) if argument else None)
        except ValueError as error:  # InvalidRequest is one too
            edge.complain(str(error) if isinstance(error, InvalidRequest) else "a seed is a whole number: /seed 7")
        else:
            edge.note(f"seed {argument}" if argument else "a new seed for each answer")

    def _answer(self, text: str) -> bool:
        """Whether it could be answered. What was written before Ctrl-C is kept as the answer."""
        from foreword.cli.answer import follow

        self.said.append({"role": "user", "content": text})
        try:
            ids = self.llm.render(self.messages)
            params = self.sampling.fitting(self.llm, self.params, ids)
            writer = show.Writer(self.colour)
            answer = follow(self.llm, ids, params, writer)
        except InvalidRequest as error:  # a conversation that has grown too long must not end the program
            self.said.pop()
            edge.complain(f"{error}. /reset begins a new conversation")
            return False
        writer.end()
        self.last = answer
        self.said.append({"role": "assistant", "content": answer.text})
        if self.stats:
            edge.note(show.summary(answer))
        return True


def _turn() -> str | None:
    """What a person says next, in one line or several; None at the end of input."""
    line = _line("> ")
    if line is None:
        return None
    if line.strip().startswith(QUOTES):
        lines = [line.strip().removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES) and (line := _line("… ")) is not None:
            lines.append(line.rstrip("\r\n"))
        return "\n".join(lines).rstrip().removesuffix(QUOTES)
    lines = [line.rstrip("\r\n")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        if (line := _line("… ")) is None:
            break
        lines.append(line.rstrip("\r\n"))
    return "\n".join(lines)


def _line(prompt: str) -> str | None:
    """The next line a person types, with editing and recall on a terminal; None at the end."""
    try:
        if not sys.stdin.isatty():
            return sys.stdin.readline() or None
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401 - importing it gives `input` its history
        return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"cannot read standard input: it is not UTF-8 text: {error.reason}") from error
