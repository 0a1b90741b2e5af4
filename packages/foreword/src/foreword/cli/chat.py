"""`foreword chat`: a conversation in the terminal, with slash commands."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import Sampling, bundled, open_llm
from foreword.errors import InvalidRequest, words
from foreword.files import check_writable
from foreword.options import DraftingOptions, ModelOptions

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.cli.common.session import Answer
    from foreword.model import Tokenizer
    from foreword.types import SamplingParams

LEAVE = ("/exit", "/quit")
COMMANDS = {
    "/regen": "answers the last question again",
    "/undo": "removes the last question and its answer",
    "/reset": "clears the conversation",
    "/system": "TEXT sets the system message; without TEXT removes it",
    "/seed": "N fixes the sampling seed; without N each answer gets a new one",
    "/save": "FILE saves the conversation, to read (.md) or for --load",
    "/stats": "shows statistics of the last answer",
    "/help": "lists the commands",
    "/exit": "leaves",
}
HELP = " · ".join(f"{name} {effect}" for name, effect in COMMANDS.items())
LINES = (
    'A line that ends in \\ continues on the next one; lines between two """ form one '
    "message."
)
QUOTES = '"' * 3
"""Delimiter of a message of several lines."""

Load = Annotated[
    Path | None,
    typer.Option(
        "--load",
        help="File of a conversation saved with /save.",
        metavar="FILE",
        callback=options.checked(lambda file: file and early.data([file])),
    ),
]


@bundled
def chat(
    *,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    sampling: Sampling,
    system: options.System = None,
    image: options.Images = None,
    load: Load = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
) -> None:
    """Chat with a model in the terminal.

    Ctrl-C stops an answer and keeps the text so far; at the prompt it exits. /help
    lists the commands. A line that ends in a backslash continues on the next one.
    """
    runtime.stdin()
    history = loaded(load) if load else []
    if history and history[0]["role"] == "system" and system is None:
        system = history[0]["content"]
    history = [message for message in history if message["role"] != "system"]
    early.vision(model, image, trusted=loading.trust_remote_code)
    more: dict[str, object] = {"generation_config": sampling.defaults()}
    if model is not None:
        more["tokenizer"] = _tokenizer(model, trusted=loading.trust_remote_code)
    llm = open_llm(model, draft, loading, drafting, **more)
    if stats:
        from foreword.api.summary import summary

        runtime.note(summary(llm, bundled=model is None))
    conversation = Conversation(
        llm,
        sampling,
        sampling.params(),
        system,
        render.use_colour(color),
        stats,
        history,
    )
    conversation.images = image or []
    conversation.run()


def _tokenizer(model: str, *, trusted: bool) -> "Tokenizer":
    """Return the tokenizer of a model, before its weights are loaded.

    Raises InvalidRequest for one without a chat template.
    """
    with render.loading():
        from foreword.model import load_tokenizer

        tokenizer = load_tokenizer(model, trust_remote_code=trusted)
    if not tokenizer.chat_template:
        raise InvalidRequest(
            f"cannot chat with {model}: it has no chat template. Use `foreword "
            "generate --raw`"
        )
    return tokenizer


def loaded(file: Path) -> list[dict[str, str]]:
    """Return the messages of `/save`. Raises InvalidRequest for another file."""
    from foreword.chats import conversation

    try:
        return conversation(json.loads(file.read_text(encoding="utf-8"))["messages"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"cannot load {file}: {words(error)}. Give a file that /save wrote"
        ) from error


@dataclass(slots=True)
class Conversation:
    """State and commands of one conversation."""

    llm: "LLM"
    sampling: Sampling
    params: "SamplingParams"
    system: str | None
    """System message of the conversation."""
    colour: bool
    stats: bool
    history: list[dict[str, str]] = field(default_factory=list)
    last: "Answer | None" = None
    images: list[Path] = field(default_factory=list)
    """Images before the first question."""

    def run(self) -> None:
        """Read messages until the end of input or /exit."""
        if sys.stdin.isatty():
            runtime.note("/help lists the commands")
            if self.colour:
                render.stderr().print(render.legend())
        while (text := _read_message()) is not None:
            word, _, rest = text.strip().partition(" ")
            if not word:
                continue
            if word in LEAVE:
                return
            if word.startswith("/") and "\n" not in text:
                self._run_command(word, rest.strip())
                continue
            self._answer(text.strip())

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the history, after the system message if there is one."""
        return [
            *([{"role": "system", "content": self.system}] if self.system else []),
            *self.history,
        ]

    @property
    def shown(self) -> list[Mapping[str, object]]:
        """Return the messages, with the images before the first question."""
        first = next(
            (
                place
                for place, turn in enumerate(self.messages)
                if turn["role"] == "user"
            ),
            None,
        )
        return [
            early.message(turn["content"], self.images) if place == first else turn
            for place, turn in enumerate(self.messages)
        ]

    def _run_command(self, command: str, argument: str) -> None:
        if command not in COMMANDS:
            near = get_close_matches(command, COMMANDS, 1)
            hint = f"Did you mean {near[0]}?" if near else "/help lists the commands"
            runtime.print_error(f"cannot run {command}: no such command exists. {hint}")
            return
        {
            "/regen": self._regenerate,
            "/undo": self._undo,
            "/reset": self._reset,
            "/system": self._set_system,
            "/seed": self._seed,
            "/save": self._save,
            "/stats": self._report,
            "/help": lambda _: runtime.note(f"{HELP}. {LINES}"),
        }[command](argument)

    def _reset(self, _: str) -> None:
        self.history.clear()
        runtime.note("conversation cleared")

    def _set_system(self, text: str) -> None:
        self.system = text or None
        runtime.note("system message set" if text else "system message removed")

    def _report(self, _: str) -> None:
        runtime.note(render.summary(self.last) if self.last else "no answer yet")

    def _pop_question(self) -> str | None:
        """Remove and return the last question, with its answer; None without one."""
        last = max(
            (
                place
                for place, turn in enumerate(self.history)
                if turn["role"] == "user"
            ),
            default=None,
        )
        if last is None:
            runtime.print_error(
                "cannot go back: the chat has no question yet. Ask one first"
            )
            return None
        text = self.history[last]["content"]
        del self.history[last:]
        return text

    def _undo(self, _: str) -> None:
        if (text := self._pop_question()) is not None:
            runtime.note(f"removed: {text}")

    def _regenerate(self, _: str) -> None:
        before = [*self.history]
        if (text := self._pop_question()) is not None and not self._answer(text):
            self.history = before

    def _save(self, name: str) -> None:
        if not name:
            runtime.print_error("cannot save: no file is given. Write /save FILE")
            return
        file = Path(name).expanduser()
        try:
            if file.name.endswith(".md"):
                content = (
                    "\n\n".join(
                        f"**{turn['role']}**\n\n{turn['content']}"
                        for turn in self.messages
                    )
                    + "\n"
                )
            else:
                content = (
                    json.dumps(
                        {"messages": self.messages}, ensure_ascii=False, indent=1
                    )
                    + "\n"
                )
            check_writable(file)
            file.write_text(content, encoding="utf-8")
        except (OSError, InvalidRequest) as error:
            runtime.print_error(str(error))
        else:
            runtime.note(f"saved the conversation to {file}")

    def _seed(self, argument: str) -> None:
        try:
            self.params = replace(self.params, seed=int(argument) if argument else None)
        except ValueError as error:  # InvalidRequest is one too
            runtime.print_error(
                str(error)
                if isinstance(error, InvalidRequest)
                else "cannot set the seed: it is not an integer. Write /seed 7"
            )
        else:
            runtime.note(
                f"seed {argument}" if argument else "a new seed for each answer"
            )

    def _answer(self, text: str) -> bool:
        """Answer a message; return whether that succeeded. Ctrl-C keeps the text."""
        from foreword.cli.common.session import follow

        self.history.append({"role": "user", "content": text})
        try:
            ids = self.llm.render(self.shown)
            params = self.sampling.fitting(self.llm, self.params, ids)
            writer = render.Writer(self.colour)
            answer = follow(self.llm, ids, params, writer)
        # a conversation beyond the context must not end the program
        except InvalidRequest as error:
            self.history.pop()
            runtime.print_error(f"{error}. /reset starts a new conversation")
            return False
        writer.end()
        self.last = answer
        self.history.append({"role": "assistant", "content": answer.text})
        if self.stats:
            runtime.note(render.summary(answer))
        return True


def _read_message() -> str | None:
    """Read the next message, of one line or several; None at the end of input."""
    line = _read_line("> ")
    if line is None:
        return None
    if line.strip().startswith(QUOTES):
        lines = [line.strip().removeprefix(QUOTES)]
        while (
            not lines[-1].rstrip().endswith(QUOTES)
            and (line := _read_line("… ")) is not None
        ):
            lines.append(line.rstrip("\r\n"))
        return "\n".join(lines).rstrip().removesuffix(QUOTES)
    lines = [line.rstrip("\r\n")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        if (line := _read_line("… ")) is None:
            break
        lines.append(line.rstrip("\r\n"))
    return "\n".join(lines)


def _read_line(prompt: str) -> str | None:
    """Read one line, with editing and history on a terminal; None at the end."""
    try:
        if not sys.stdin.isatty():
            return sys.stdin.readline() or None
        with suppress(ImportError):  # not on every system
            import readline  # noqa: F401 - importing it gives `input` its history
        return input(prompt)
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"cannot read standard input: it is not UTF-8 text: {error.reason}. Give "
            "UTF-8"
        ) from error
