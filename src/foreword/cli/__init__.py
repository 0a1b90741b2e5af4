"""The command line. Every command imports the library only when it runs.

Exit codes: 0 done, 1 failed, 2 invalid request, 130 stopped with Ctrl-C (output already
written stays).
"""

from __future__ import annotations

from typing import Annotated

import typer

from foreword.cli.bench import bench
from foreword.cli.certify import certify
from foreword.cli.chat import chat
from foreword.cli.common import runtime
from foreword.cli.common.options import examples
from foreword.cli.demo import demo
from foreword.cli.doctor import doctor
from foreword.cli.env import env
from foreword.cli.generate import generate
from foreword.cli.index import index
from foreword.cli.inspect import inspect
from foreword.cli.methods import methods
from foreword.cli.quantize import quantize
from foreword.cli.serving.batch import batch
from foreword.cli.serving.serve import serve
from foreword.cli.serving.simulate import simulate
from foreword.cli.theory import theory
from foreword.cli.training.acceptance import acceptance
from foreword.cli.training.data import data
from foreword.cli.training.export import export
from foreword.cli.training.train import train
from foreword.cli.transcribe import transcribe
from foreword.cli.tune import method, tune
from foreword.cli.view import view
from foreword.cli.whatif import whatif

GENERATE = "Generate"
INSPECT = "Inspect"
MEASURE = "Measure"
PREPARE = "Train and prepare"

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


@app.callback()
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


for panel, command, example in (
    (
        GENERATE,
        generate,
        (
            'foreword generate "Shell command: list files" -t 0',
            "cat letter.txt | foreword generate - --raw",
        ),
    ),
    (
        GENERATE,
        chat,
        (
            "foreword chat --temperature 0.7 --seed 7",
            "foreword chat -m path/or/hub-id -d path/or/hub-id",
            "foreword chat -m model.Q4_K_M.gguf -d repo/id:draft.Q8_0.gguf",
        ),
    ),
    (
        GENERATE,
        transcribe,
        (
            "foreword transcribe talk.wav -m path/or/hub-id --timestamps",
            (
                "foreword transcribe *.wav -m path/or/hub-id -d path/or/hub-id "
                "--language "
                "en --json"
            ),
        ),
    ),
    (
        GENERATE,
        serve,
        (
            "foreword serve",
            (
                "foreword serve path/or/hub-id --draft path/or/hub-id --port 8080 "
                "--api-key-file keys.txt"
            ),
            "foreword serve model.Q4_K_M.gguf",
        ),
    ),
    (
        GENERATE,
        batch,
        (
            "foreword batch requests.jsonl answers.jsonl",
            (
                "foreword batch requests.jsonl answers.jsonl -m path/or/hub-id "
                "-d path/or/hub-id --json"
            ),
        ),
    ),
    (
        PREPARE,
        index,
        (
            "foreword index chats.jsonl --out store",
            "foreword index docs/ src/ -m path/or/hub-id -o store --json",
        ),
    ),
    (
        PREPARE,
        quantize,
        (
            "foreword quantize path/or/hub-id --to int4 --out model-int4",
            "foreword quantize path/or/hub-id --to Q4_K_M --out model.Q4_K_M.gguf",
        ),
    ),
    (
        PREPARE,
        export,
        (
            "foreword export head --for vllm --out head-vllm",
            "foreword export head --for sglang -o out -m path/or/hub-id --json",
        ),
    ),
    (
        INSPECT,
        view,
        (
            "foreword view answer.json --rounds",
            "foreword view answer.json --html answer.html",
        ),
    ),
    (
        INSPECT,
        whatif,
        (
            'foreword generate "List the rivers" --record answer.json',
            "foreword whatif answer.json",
            "foreword whatif answer.json --method suffix --nodes 4,8 --trees",
        ),
    ),
    (INSPECT, methods, ("foreword methods", "foreword methods --json")),
    (
        INSPECT,
        inspect,
        (
            "foreword inspect path/or/hub-id",
            "foreword inspect path/or/hub-id --draft path/or/hub-id",
        ),
    ),
    (
        INSPECT,
        doctor,
        (
            "foreword doctor path/of/draft",
            "foreword doctor path/of/head --model path/or/hub-id --json",
            "foreword doctor --url http://127.0.0.1:8000",
        ),
    ),
    (
        INSPECT,
        certify,
        (
            "foreword certify --quick",
            "foreword certify path/or/hub-id -d path/or/hub-id --report proof.html",
            "foreword certify --url http://127.0.0.1:8000 --json -",
        ),
    ),
    (INSPECT, env, ("foreword env", "foreword env --json > environment.json")),
    (
        MEASURE,
        demo,
        (
            "foreword demo",
            "foreword demo --temperature 0.8 --seed 7",
            "foreword demo --html demo.html",
        ),
    ),
    (
        MEASURE,
        simulate,
        (
            "foreword simulate --from-server http://127.0.0.1:8000 --clients 32",
            "foreword simulate --costs costs.json --rate 20 --replicas 1,2,4,8",
            "foreword simulate --costs costs.json --trace trace.jsonl --json",
        ),
    ),
    (
        MEASURE,
        theory,
        (
            "foreword theory --alpha 0.8 --cost 0.05",
            "foreword theory --quick --plot theory.png",
            "foreword theory path/or/hub-id --draft path/or/hub-id -t 0 --json -",
        ),
    ),
):
    app.command(rich_help_panel=panel, epilog=examples(*example))(command)

train.command(
    epilog=examples(
        "foreword train acceptance --data answers.jsonl --out accept",
        "foreword train acceptance --model path/or/hub-id --draft path/or/hub-id "
        "--data answers.jsonl --out accept",
        'foreword generate "…" --budget acceptance:accept',
    )
)(acceptance)

tune.command(
    epilog=examples(
        "foreword tune method",
        "foreword tune method --model path/or/hub-id --draft folder/of/models "
        "--prompts mine.jsonl --minutes 5",
        "foreword tune method --model path/or/hub-id --draft path/or/hub-id -t 1 "
        "--report found.html",
        "foreword generate …    # foreword.toml is found",
    )
)(method)

for group, example in (
    (train, ("foreword train lm --data answers.jsonl --out draft",)),
    (data, ("foreword data regenerate --data chats.jsonl --out answers.jsonl",)),
    (tune, ("foreword tune method --model path/or/hub-id --prompts mine.jsonl",)),
):
    app.add_typer(group, rich_help_panel=PREPARE, epilog=examples(*example))

app.add_typer(
    bench,
    rich_help_panel=MEASURE,
    epilog=examples(
        "foreword bench --quick --json quick.json",
        "foreword bench --inflate llama-350m --plot 350m.png",
        "foreword bench batch 1,4,16,32 --method lm",
        "foreword bench limit",
    ),
)


def main() -> None:
    """Run the command line. Always ends in SystemExit."""
    runtime.run(app)
