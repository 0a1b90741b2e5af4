"""`foreword theory`: options and output of the formulas in foreword.theory."""

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from foreword.cli.common import early, options, render
from foreword.cli.common.bundles import bundled
from foreword.cli.common.early import STDOUT
from foreword.cli.common.options import option
from foreword.cli.common.progress import LineProgress
from foreword.errors import InvalidRequest
from foreword.options import LoadingOptions, keywords
from foreword_lab.commands import bench_options

if TYPE_CHECKING:
    from foreword_lab.theory.outlook import Outlook
    from foreword_lab.theory.report import HeatReport, TheoryReport

FORMULA = "Formulas without a model"
TAKEN = {"alpha", "cost", "json", "plot"}
"""Options of the formulas alone."""


Alpha = Annotated[
    float | None,
    option(FORMULA, "--alpha", "Probability that a draft token is accepted.", "A"),
]
Cost = Annotated[
    float | None,
    option(FORMULA, "--cost", "Time of a draft token over a step of the target.", "C"),
]
Temperatures = Annotated[
    list[float] | None,
    option(
        bench_options.MEASURE,
        "--temperature -t",
        "Sampling temperature. Repeatable. Default: 0 and 1.",
        "T",
        early.each(early.temperature),
    ),
]
Length = Annotated[
    int,
    option(
        bench_options.MEASURE,
        "--max-tokens",
        "Maximum number of new tokens per answer.",
        "N",
        least=2,
    ),
]


@bundled
def theory(
    model: options.ModelArgument = None,
    *,
    target: options.ModelName = None,
    draft: options.DraftName = None,
    method: options.MethodName = None,
    prompts: bench_options.Kind = "in-domain",
    limit_prompts: bench_options.Few = 24,
    max_tokens: Length = 96,
    temperature: Temperatures = None,
    seed: bench_options.Seed = 0,
    quick: bench_options.Quick = False,
    alpha: Alpha = None,
    cost: Cost = None,
    json: bench_options.Json = None,
    plot: bench_options.Plot = None,
    loading: LoadingOptions,
) -> None:
    """Apply the formulas of the papers to a pair on this machine.

    Measures acceptance and costs, and by how much the formulas err. With --alpha and
    --cost nothing is loaded (Leviathan et al. 2023).
    """
    model, target = early.either(model, target, "--model"), None
    values = locals()
    if plot is not None:
        early.extra("plots", "matplotlib")
    if alpha is None and cost is None:
        _measured(values)
    else:
        _formulas(values)


def _formulas(values: dict[str, Any]) -> None:
    """Print the formulas for the numbers of the options."""
    from foreword_lab.theory.outlook import given as outlook_of
    from foreword_lab.theory.tables import outlook_table

    _check_formulas(values)
    outlook = outlook_of(values["alpha"], values["cost"])
    if values["plot"]:
        from foreword_lab.theory.plot import draw_outlook

        draw_outlook(outlook, values["plot"])
    if render.written(outlook.as_json(), values["json"]):
        return
    console = render.stdout()
    console.print(outlook_table(outlook))
    _print_outlook(console, outlook)


def _check_formulas(values: dict[str, Any]) -> None:
    """Raise InvalidRequest if one number is missing, or an option has no effect."""
    for name in ("alpha", "cost"):
        if values[name] is None:
            raise InvalidRequest(
                f"cannot apply the formulas: '--{name}' is missing. Give both numbers, "
                "or neither to measure a pair"
            )
    flat = values | keywords(values["loading"])
    unused = [
        "'MODEL'" if name == "model" else f"'--{name.replace('_', '-')}'"
        for name, one in signature(theory).parameters.items()
        if name not in TAKEN and flat[name] != one.default
    ]
    if unused:
        raise InvalidRequest(
            f"cannot use {' and '.join(unused)} with '--alpha' and '--cost': nothing "
            "is measured. Leave it out"
        )


def _measured(values: dict[str, Any]) -> None:
    """Measure a pair and print it beside the formulas."""
    from foreword_lab.theory.run import TheoryOptions, examine

    request = TheoryOptions(
        target=values["model"],
        draft=values["draft"],
        method=values["method"],
        prompts=values["prompts"],
        limit_prompts=values["limit_prompts"],
        tokens=values["max_tokens"],
        temperatures=tuple(values["temperature"] or (0.0, 1.0)),
        seed=values["seed"],
        quick=values["quick"],
        **keywords(values["loading"]),
    )
    with LineProgress(quiet=values["json"] == STDOUT) as progress:
        report = examine(request, progress)
    if values["plot"]:
        from foreword_lab.theory.plot import draw

        draw(report, values["plot"])
    if not render.written(report.as_json(), values["json"]):
        _print(report)


def _print(report: "TheoryReport") -> None:
    from foreword_lab.theory.tables import pair_table

    console = render.stdout()
    for heat in report.heats:
        console.print(pair_table(heat))
        render.facts(_facts(heat))
    _print_outlook(console, report.heats[0].outlook)


def _print_outlook(console: Console, outlook: "Outlook") -> None:
    """Print the surface and the verdict."""
    from foreword_lab.theory.tables import surface_table, verdict

    console.print(surface_table(outlook))
    console.print(
        f"α = {outlook.alpha:.2f}, c = {outlook.cost.token:.3f}: {verdict(outlook)}"
    )


def _facts(heat: "HeatReport") -> dict[str, object]:
    """Return what was measured, and the verdicts of theorem and measured cost."""
    from foreword_lab.theory.tables import verdict

    alpha, cost = heat.alpha, heat.cost
    after = heat.after_rejection
    rows = (1, 2, 5, 9)
    scoring = [f"{cost.scoring[count - 1]:.2f}" for count in rows]
    return {
        "α": f"{alpha.mid:.3f} (95 %: {alpha.low:.3f} to {alpha.high:.3f})",
        "by depth": f"{_percent(heat.by_depth)} in passes of {len(heat.by_depth)}",
        "eq. 1 with the first": f"errs by {after.mid:+.0%} "
        f"({after.low:+.0%} to {after.high:+.0%})",
        "c": f"{cost.token:.3f} of a step of {1000 * heat.step:.2f} ms, and "
        f"{cost.start:.3f} for each draft",
        "scoring": f"{', '.join(scoring)} steps for {', '.join(map(str, rows))} rows",
        "theorem 3.8": verdict(heat.theorem),
        "measured costs": verdict(heat.outlook),
    }


def _percent(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)
