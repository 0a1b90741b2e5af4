"""`foreword demo`: the family that ships writes four answers, plain and ahead, in colour; then the figures.

Knows the prompts and how they are shown; measuring is foreword.bench's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from foreword.cli import early, edge, options, show
from foreword.cli.scene import Scene, picture, table

if TYPE_CHECKING:
    from foreword.bench.prompts import Prompt
    from foreword.bench.report import Row
    from foreword.llm import LLM

PROMPTS = ("sgd_call/10", "wiki_split/119", "open_trivia/133", "tldr/184")
"""Held out from training, of four kinds, and such that so small a model answers them sensibly."""
REPEATS = 3
MAX_TOKENS = 96
SHAPE = "llama-350m"


def demo(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Two prompts, measured once.")] = False,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same text.", metavar="N")] = 0,
    svg: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Save the answers and the table as a picture.", callback=options.checked(early.file)
        ),
    ] = None,
) -> None:
    """Watch the small models that ship write, plain and ahead, and see how much sooner.

    Accepted guesses are green, the model's own tokens bold. The text is the same every time; the figures are medians
    after a warm-up, on the same prompts and weights, transformers' own `generate` among them.
    """
    from foreword import LLM, SamplingParams
    from foreword.bench.prompts import load
    from foreword.draft import PLAIN, WITH_DRAFT, WITHOUT_DRAFT

    found = {prompt.id: prompt for prompt in load("in-domain")}
    prompts = [found[name] for name in PROMPTS[: 2 if quick else None]]
    with show.stderr().status("loading the models and warming up"):
        llms = [LLM(method=name) for name in (PLAIN, WITHOUT_DRAFT, WITH_DRAFT)]
        for llm in llms:
            llm.chat(prompts[0].messages, SamplingParams(temperature=0, max_tokens=24))
    out = show.stdout()
    out.print(show.legend(), "")
    scenes = []
    for prompt in prompts:
        scene = Scene(prompt.category, prompt.messages[-1]["content"])
        with Live(scene, console=out, auto_refresh=False, vertical_overflow="visible") as live:
            for llm in llms:
                _play(llm, prompt, (temperature, seed), scene, live)
        scenes.append(scene)
        out.print()
    with show.stderr().status("measuring"):
        figures = table(_measure(llms[0], prompts, (temperature, seed), 1 if quick else REPEATS))
    out.print(figures)
    edge.note(f"So small a model costs little; see a larger one: foreword bench --inflate {SHAPE}")
    if svg is not None:
        svg.write_text(picture(scenes, figures), encoding="utf-8")
        edge.note(f"the picture is in {svg}")


def _play(llm: LLM, prompt: Prompt, law: tuple[float, int], scene: Scene, live: Live) -> None:
    """Stream one answer into the scene. Ctrl-C ends the demo."""
    from foreword import SamplingParams

    params = SamplingParams(temperature=law[0], seed=law[1], max_tokens=MAX_TOKENS)
    line = scene.line(_row_name(llm.method))
    for delta in llm.stream(llm.render(prompt.messages), params):
        line.add(delta)
        live.update(scene, refresh=True)


def _row_name(method: str) -> str:
    from foreword.bench.lineup import PLAIN_ROW
    from foreword.draft import PLAIN

    return PLAIN_ROW if method == PLAIN else method


def _measure(llm: LLM, prompts: list[Prompt], law: tuple[float, int], repeats: int) -> tuple[Row, ...]:
    """Every contender on every prompt, turn by turn, after one turn that does not count; medians of the turns."""
    from foreword.bench import peers
    from foreword.bench.leftout import LeftOut
    from foreword.bench.lineup import PLAIN_ROW, lineup, weights
    from foreword.bench.report import rows
    from foreword.bench.trial import Request
    from foreword.draft import WITH_DRAFT, WITHOUT_DRAFT
    from foreword.width import policy

    names = (PLAIN_ROW, WITHOUT_DRAFT, WITH_DRAFT, peers.GENERATE)
    out = LeftOut(edge.note, needed=PLAIN_ROW)
    entrants = lineup(weights(None, None, "auto", None), names, out, edge.note, policy())
    requests = [Request(p.id, tuple(llm.render(p.messages)), *law, MAX_TOKENS) for p in prompts]
    trials = {(one.name, law[0]): {request.name: [] for request in requests} for one in entrants.contenders}
    for turn in range(repeats + 1):
        for place, request in enumerate(requests):
            first = (turn + place) % len(entrants.contenders)
            for contender in (*entrants.contenders[first:], *entrants.contenders[:first]):
                trial = contender.run(request)
                if turn:
                    trials[contender.name, law[0]][request.name].append(trial)
    return rows(
        {
            contender: {
                name: [sorted(many, key=lambda trial: trial.seconds)[len(many) // 2]] for name, many in by.items()
            }
            for contender, by in trials.items()
        }
    )
