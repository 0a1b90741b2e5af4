"""The app: the commands of this package, and of all others that are installed."""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from foreword.cli.chat import chat
from foreword.cli.common import runtime
from foreword.cli.common.command import GENERATE, GROUP, INSPECT, PREPARE, Command
from foreword.cli.common.options import examples
from foreword.cli.env import env
from foreword.cli.generate import generate
from foreword.cli.index import index
from foreword.cli.inspect import inspect
from foreword.cli.methods import methods
from foreword.cli.transcribe import transcribe
from foreword.entries import package
from foreword.errors import InvalidRequest, named

OWN = (
    Command(
        GENERATE,
        "generate",
        generate,
        (
            'foreword generate "Shell command: list files" -t 0',
            "cat letter.txt | foreword generate - --raw",
        ),
    ),
    Command(
        GENERATE,
        "chat",
        chat,
        (
            "foreword chat --temperature 0.7 --seed 7",
            "foreword chat -m path/or/hub-id -d path/or/hub-id",
            "foreword chat -m model.Q4_K_M.gguf -d repo/id:draft.Q8_0.gguf",
        ),
    ),
    Command(
        GENERATE,
        "transcribe",
        transcribe,
        (
            "foreword transcribe talk.wav -m path/or/hub-id --timestamps",
            (
                "foreword transcribe *.wav -m path/or/hub-id -d path/or/hub-id "
                "--language en --json"
            ),
        ),
    ),
    Command(
        PREPARE,
        "index",
        index,
        (
            "foreword index chats.jsonl --out store",
            "foreword index docs/ src/ -m path/or/hub-id -o store --json",
        ),
    ),
    Command(
        INSPECT, "methods", methods, ("foreword methods", "foreword methods --json")
    ),
    Command(
        INSPECT,
        "inspect",
        inspect,
        (
            "foreword inspect path/or/hub-id",
            "foreword inspect path/or/hub-id --draft path/or/hub-id",
        ),
    ),
    Command(
        INSPECT, "env", env, ("foreword env", "foreword env --json > environment.json")
    ),
)
EXTRAS = {
    **dict.fromkeys(("generate", "chat", "transcribe")),
    **dict.fromkeys(("serve", "batch"), "serve"),
    "index": None,
    "quantize": "lab",
    **dict.fromkeys(("export", "push", "train", "data"), "train"),
    **dict.fromkeys(("view", "whatif"), "lab"),
    **dict.fromkeys(("methods", "inspect")),
    **dict.fromkeys(("doctor", "certify"), "lab"),
    "env": None,
    **dict.fromkeys(("demo", "bench"), "lab"),
}
"""Command of Foreword -> the extra that brings it, None for this package's own
commands; in the order of the help, where commands of other packages follow.
"""
ANYTHING = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""Settings of a command that takes any argument."""


def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            is_eager=True,
            callback=runtime.version,
            help="Version, then exit.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Traceback of an error. Also FOREWORD_DEBUG=1."),
    ] = False,
) -> None:
    """Speculative decoding: the same text as the language model alone, several times
    faster.
    """
    runtime.prepare(debug=debug)


def offered() -> list[Command]:
    """Return the commands of all installed packages, in the order of the help."""
    parts = [_loaded(entry) for entry in entry_points(group=GROUP)]
    known = {command.name: command for part in (OWN, *parts) for command in part}
    names = dict.fromkeys((*EXTRAS, *sorted(known)))
    return [known[name] for name in names if name in known]


def _loaded(entry: EntryPoint) -> Sequence[Command]:
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001 - code of another package
        runtime.print_warning(
            f"cannot use the commands of {package(entry)}: {named(error)}. Update or "
            "remove that package"
        )
        return ()


def build(commands: Iterable[Command]) -> typer.Typer:
    """Return the app of some commands. Foreword's others are in it too: they only say
    which package brings them.
    """
    app = typer.Typer(
        name="foreword",
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        epilog=examples(
            "foreword demo",
            'foreword generate "Define the word gasolene." --temperature 0',
            "foreword chat --model path/or/hub-id --draft path/or/hub-id",
            "foreword COMMAND --help",
        ),
    )
    app.callback()(root)
    names = set[str]()
    for command in commands:
        names.add(command.name)
        panel, epilog = command.panel, examples(*command.examples)
        if isinstance(command.run, typer.Typer):
            app.add_typer(command.run, rich_help_panel=panel, epilog=epilog)
        else:
            register = app.command(command.name, rich_help_panel=panel, epilog=epilog)
            register(command.run)
    for name, extra in EXTRAS.items():
        if name not in names:
            register = app.command(name, hidden=True, context_settings=ANYTHING)
            register(_missing(name, extra))
    return app


def _missing(name: str, extra: str | None) -> Callable[[], None]:
    def refuse() -> None:
        raise InvalidRequest(
            f"cannot run '{name}': its package is not installed. Run: pip install "
            f"'foreword[{extra}]'"
        )

    return refuse


app = build(offered())
