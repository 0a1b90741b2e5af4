"""`foreword tune method`: the fastest method and number of draft tokens for a target,
this machine and these prompts.
"""

import json
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled, open_llm
from foreword.cli.common.options import option
from foreword.cli.common.progress import LineProgress
from foreword.cli.common.tables import WIDE, Column, Table, figure, figure_column, share
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.files import SETTINGS
from foreword.options import DraftingOptions, ModelOptions
from foreword.registry import DEFAULT_RULE, HEAD, MODEL
from foreword.settings_file import BUNDLED, DraftingFile
from foreword_lab.commands import bench_options

if TYPE_CHECKING:
    from foreword_lab.tune.arms import Arm, Chosen, Search
    from foreword_lab.tune.chosen import Confirmation, Prediction

tune = typer.Typer(
    name="tune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Choose the fastest drafting method on this machine.",
)

SHOWN = 10
"""Predictions in the table."""
MOST_PROMPTS = 48
"""Prompts of a set that are used at most, spread over their sources."""

Drafts = Annotated[
    list[str] | None,
    option(
        None,
        "--draft -d",
        "Draft model or head, or a folder of several. Repeatable.",
        "MODEL",
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        None,
        "--method",
        "Method to consider. Repeatable. Default: all usable ones.",
        "NAME",
    ),
]
Rules = Annotated[
    list[str] | None,
    option(
        None,
        "--rule",
        "Verification rule to consider. Repeatable. Default: match.",
        "NAME",
    ),
]
Minutes = Annotated[
    float, option(None, "--minutes", "Time for each draft.", "MINUTES", least=0.1)
]
MaxTokens = Annotated[
    int,
    option(
        None, "--max-tokens", "Maximum number of new tokens per answer.", "N", least=2
    ),
]
Out = Annotated[
    Path,
    option(
        None,
        "--out -o",
        "File of the choice, found by LLM, serve and the command line.",
        "FILE",
        early.file,
    ),
]
ReportFile = Annotated[
    Path | None,
    option(
        None,
        "--report",
        "One HTML page with plots: acceptance, costs, predicted and measured.",
        "FILE.html",
        early.file,
    ),
]
Seed = Annotated[int, option(None, "--seed", "Seed of the first answer.", "N", least=0)]


@bundled
def method(
    *,
    model: options.ModelName = None,
    draft: Drafts = None,
    methods: Methods = None,
    rules: Rules = None,
    prompts: bench_options.Kind = "in-domain",
    minutes: Minutes = 3.0,
    max_tokens: MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    seed: Seed = 0,
    out: Out = Path(SETTINGS),
    report: ReportFile = None,
    loading: ModelOptions,
    as_json: options.AsJson = False,
) -> None:
    """Choose the drafting method and the number of draft tokens, and write them to
    foreword.toml.

    The target answers prompts once. Every choice is then predicted on the same answers,
    which do not depend on the drafter; the best are timed against plain decoding.
    Only the rule match keeps the text of a seed, so others are considered if named.
    """
    from foreword_lab.tune.arms import Search

    _check(methods or (), rules or ())
    search = Search(
        methods=tuple(methods) if methods else None,
        rules=tuple(dict.fromkeys(rules or [DEFAULT_RULE])),
        temperature=temperature,
        tokens=max_tokens,
        minutes=minutes,
        seed=seed,
    )
    results = [
        (one, _choose(model, one, loading, prompts, search, quiet=as_json))
        for one in _drafts(model, draft, trusted=loading.trust_remote_code)
    ]
    best, chosen = max(results, key=lambda pair: pair[1].confirmations[0].measured.mid)
    head = f"Written by `foreword tune method` on {date.today()}."
    text = _file(model, best, chosen.best).text(head, *chosen.why)
    out.write_text(text, encoding="utf-8")
    if report is not None:
        _report(report, chosen, model, best)
    if as_json:
        values = {"out": str(out), "draft": best, **chosen.as_json()}
        sys.stdout.write(json.dumps(values) + "\n")
        return
    console = render.stdout()
    for path, result in results:
        title = "predicted on the same answers"
        console.print(_table(result, title if path is None else f"{path}: {title}"))
        console.print(_timed(result))
    for line in chosen.why:
        console.print(line, markup=False)
    runtime.note(f"wrote {out}: LLM, serve and the command line find it here")


def _check(methods: Iterable[str], rules: Iterable[str]) -> None:
    """Raise InvalidRequest if one of these is unknown, or cannot be predicted."""
    from foreword.draft import method as find_method
    from foreword.hindsight.known_rule import check_rule

    for name in methods:
        find_method(name)
    for name in rules:
        check_rule(name)


def _report(file: Path, chosen: "Chosen", model: str | None, draft: str | None) -> None:
    from foreword_lab.html_page import write
    from foreword_lab.tune.chosen_page import page

    drafted = "" if draft is None else f", draft {draft}"
    write(file, page(chosen, f"{model or 'the bundled models'}{drafted}"))
    runtime.note(f"wrote {file}")


def _drafts(
    model: str | None, names: list[str] | None, *, trusted: bool
) -> list[str | None]:
    """Return the drafts with the target's tokenizer; says which have another one.

    Raises InvalidRequest if none is left.
    """
    if not names:
        return [None]
    from foreword import bundled as models
    from foreword.model import check_same, load_tokenizer

    remote = {"trust_remote_code": True} if trusted else {}
    tokenizer = load_tokenizer(model or models.target(), **remote)
    fitting: list[str | None] = []
    listed = [path for one in names for path in _each(one)]
    for path in listed:
        try:
            check_same(tokenizer, load_tokenizer(path, **remote))
        except VocabularyMismatch as error:
            runtime.note(f"left out {path}: {error}")
        else:
            fitting.append(path)
    if not fitting:
        raise InvalidRequest(
            "cannot choose among these drafts: none has the target's tokenizer. Give "
            "smaller models of its family"
        )
    return fitting


def _each(name: str) -> list[str]:
    """Return the models of a folder of models, or the one that is given."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "config.json").is_file():
        return [name]
    return sorted(str(file.parent) for file in folder.glob("*/config.json")) or [name]


def _choose(
    model: str | None,
    draft: str | None,
    loading: ModelOptions,
    prompts: str,
    search: "Search",
    *,
    quiet: bool,
) -> "Chosen":
    from foreword.prompts import load
    from foreword_lab.bench.run import render as as_tokens
    from foreword_lab.bench.run import spread
    from foreword_lab.tune.arms import choose

    chosen = spread(load(prompts), MOST_PROMPTS)
    # a method that is named keeps a foreword.toml out
    drafting = DraftingOptions(rule="match")
    with (
        open_llm(model, draft, loading, drafting) as llm,
        LineProgress(quiet=quiet) as progress,
    ):
        room = llm.target.context - search.tokens
        texts = [as_tokens(llm.tokenizer, prompt)[-room:] for prompt in chosen]
        return choose(llm, texts, search, progress)


def _file(model: str | None, draft: str | None, best: "Arm") -> DraftingFile:
    from foreword.draft import method as find_method

    takes = find_method(best.method).about.takes
    return DraftingFile(
        target=model or BUNDLED,
        draft=draft if takes.startswith((MODEL, HEAD)) else None,
        method=best.method,
        rule=best.rule if best.rule != DEFAULT_RULE else None,
        nodes=best.nodes or None,
    )


def _table(chosen: "Chosen", title: str) -> "Table[Prediction]":
    """Return the best predictions."""
    columns = (
        Column["Prediction"]("method", lambda row: row.arm.name, justify="left"),
        figure_column("draft tokens", lambda row: str(row.arm.nodes or "–")),
        figure_column("× plain", lambda row: f"{row.over_plain.mid:.2f}"),
        figure_column("95 %", lambda row: row.over_plain.ends),
        figure_column("per pass", lambda row: f"{row.tokens_per_pass:.2f}"),
        figure_column("accepted", lambda row: share(row.accepted)),
        figure_column("drafting", lambda row: share(row.drafting)),
    )
    return Table(chosen.predictions[:SHOWN], columns, title=title, look=WIDE)


def _timed(chosen: "Chosen") -> "Table[Confirmation]":
    """Return the choices that were timed, beside what was predicted."""
    columns = (
        Column["Confirmation"]("method", lambda row: row.arm.name, justify="left"),
        figure_column("draft tokens", _nodes),
        figure_column("× plain", lambda row: f"{row.measured.mid:.2f}"),
        figure_column("95 %", lambda row: row.measured.ends),
        figure_column("predicted", lambda row: figure(row.predicted, missing="–")),
        figure_column(
            "off by", lambda row: "–" if row.error is None else f"{row.error:+.0%}"
        ),
    )
    return Table(
        chosen.confirmations,
        columns,
        title=f"timed on {chosen.prompts} prompts",
        look=WIDE,
        emphasis=lambda row: "bold" if row.arm == chosen.best else None,
    )


def _nodes(row: "Confirmation") -> str:
    return "adaptive" if row.arm.nodes is None else str(row.arm.nodes or "–")
