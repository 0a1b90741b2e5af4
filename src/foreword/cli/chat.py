"""`foreword chat`: a conversation in the terminal. Knows lines and commands; knows nothing about models' insides."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from foreword.cli import edge, options, show
from foreword.cli.bundles import Driving, Guessing, Sampling, bundled
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.types import SamplingParams

LEAVE = ("/exit", "/quit")
COMMANDS = "/reset forgets the conversation · /seed N makes it repeatable · /seed forgets the seed · /exit leaves"


@bundled
def chat(
    *,
    model: options.ModelName = None,
    loading: Driving,
    guessing: Guessing,
    learn: options.Learn = None,
    sampling: Sampling,
    system: options.System = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
) -> None:
    """Talk with a model; it remembers the conversation.

    Ctrl-C stops an answer and keeps what is there; at the prompt it leaves. Commands: /reset, /seed N, /exit, /help.
    """
    edge.stdin()
    from foreword import LLM

    llm = LLM(model, **loading.how, **guessing.how, learn=learn is not None)
    if not llm.tokenizer.chat_template:
        raise InvalidRequest(f"{llm.target.name} has no chat template; use `foreword generate --raw`")
    told = [{"role": "system", "content": system}] if system is not None else []
    talk = Talk(llm, sampling, sampling.params(), told, show.wants_colour(color), stats)
    talk.run()
    if learn is not None:
        llm.save_draft(learn)
        edge.note(f"{learn} holds the draft model with what it has learnt; --draft {learn} serves it")


@dataclass(slots=True)
class Talk:
    """A conversation while it goes on."""

    llm: LLM
    sampling: Sampling
    params: SamplingParams
    told: list[dict[str, str]]
    """What every conversation begins with."""
    colour: bool
    stats: bool
    said: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Read lines until the end of input or /exit."""
        if sys.stdin.isatty():
            edge.note(COMMANDS)
            if self.colour:
                show.stderr().print(show.legend())
        while (line := _line()) is not None:
            word, _, rest = line.strip().partition(" ")
            if not word:
                continue
            if word in LEAVE:
                return
            if word.startswith("/"):
                self._obey(word, rest.strip())
                continue
            self._answer(line.strip())

    def _obey(self, command: str, argument: str) -> None:
        if command == "/reset":
            self.said.clear()
            edge.note("the conversation is forgotten")
        elif command == "/seed":
            self._seed(argument)
        elif command == "/help":
            edge.note(COMMANDS)
        else:
            edge.complain(f"there is no command {command}. {COMMANDS}")

    def _seed(self, argument: str) -> None:
        try:
            self.params = replace(self.params, seed=int(argument) if argument else None)
        except ValueError as error:  # InvalidRequest is one too
            edge.complain(str(error) if isinstance(error, InvalidRequest) else "a seed is a whole number: /seed 7")
        else:
            edge.note(f"seed {argument}" if argument else "a new seed for each answer")

    def _answer(self, text: str) -> None:
        from foreword.cli.answer import follow

        self.said.append({"role": "user", "content": text})
        try:
            ids = self.llm.render([*self.told, *self.said])
            params = self.sampling.fitting(self.llm, self.params, ids)
            writer = show.Writer(self.colour)
            answer = follow(self.llm, ids, params, writer)
        except InvalidRequest as error:  # a conversation that has grown too long must not end the program
            self.said.pop()
            edge.complain(f"{error}. /reset begins a new conversation")
            return
        writer.end()
        self.said.append({"role": "assistant", "content": answer.text})
        if self.stats:
            edge.note(show.summary(answer))


def _line() -> str | None:
    """The next line a person types, with editing and recall on a terminal; None at the end."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401 - importing it gives `input` its history
    try:
        return input("> ")
    except EOFError:
        return None
