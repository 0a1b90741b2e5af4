"""Tables of the README and the pages are made from docs/numbers, by website/."""

import json
import re
import shutil
from pathlib import Path

import pytest
from website import badges, fill_numbers

ROOT = Path(__file__).parents[2]
NUMBERS = sorted(
    path
    for path in (ROOT / "docs" / "numbers").glob("*/*.json")
    if path.parent.name != "models"
)
METHODS = Path("docs", "numbers", "xeon-amx", "every-method-350m-amx.json")
XEON = Path("docs", "numbers", "xeon-amx", "350m-amx.json")
PAIR = XEON.with_name("published-qwen-amx.json")


def run(root: Path, *options: str) -> str:
    """Run the program on a repository; return its error."""
    try:
        fill_numbers.main(["--root", str(root), *options])
    except SystemExit as ended:
        return str(ended.code)
    return ""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the program reads and writes."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def test_pages_and_chart_equal_their_numbers():
    assert run(ROOT, "--check") == ""
    files = (badges.FOLDER / name for name in badges.badges())
    assert [file.read_text("utf-8") for file in files] == [*badges.badges().values()]


def test_every_file_says_what_made_it():
    assert len(NUMBERS) > 20
    for path in NUMBERS:
        found = json.loads(path.read_text(encoding="utf-8"))
        for field in ("command", "date", "machine"):
            assert found.get(field), f"{path.name} has no {field}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]), path.name


def test_figures_of_the_readme_equal_the_run():
    """Read without the program, so that a wrong rounding is seen."""
    run = json.loads((ROOT / PAIR).read_text(encoding="utf-8"))
    figures = {(row["name"], row["temperature"]): row for row in run["rows"]}
    region = (ROOT / "README.md").read_text(encoding="utf-8")
    region = region[region.index("<!-- numbers:") : region.index("<!-- end")]
    lines = [line.strip("|").split("|") for line in region.splitlines() if "|" in line]
    order = re.search(r"rows=(\S+)", region)
    assert order is not None
    names = order[1].split(",")
    assert len(lines) == len(names) + 2
    for name, cells in zip(names, lines[2:], strict=True):
        for place, temperature in ((1, 0), (3, 1)):
            row = figures[name, temperature]
            speed = row["decode_tokens_per_second"]
            assert abs(float(cells[place].replace(",", "")) - speed) <= 0.5
            shown = [float(one) for one in re.findall(r"[\d.]+", cells[place + 1])]
            low, mid, high = row["decode_speedup_over_plain"]
            assert shown == pytest.approx([mid, low, high][: len(shown)], abs=0.005)


def speedups() -> dict[tuple[str, float], str]:
    """Return the times over plain of each method, by temperature, as pages say them."""
    rows = json.loads((ROOT / METHODS).read_text(encoding="utf-8"))["rows"]
    return {
        (row["name"], row["temperature"]): f"{row['speedup_over_plain'][1]:.2f}"
        for row in rows
    }


def test_figures_of_the_choice_equal_the_run():
    text = (ROOT / "docs" / "choose-a-method.md").read_text(encoding="utf-8")
    found = 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not re.fullmatch(r"[\d.]+(; [\d.]+)?", cells[-1].strip(" |")):
            continue
        names = re.findall(r"methods/(\w+)\.md", line)
        for cell, temperature in ((cells[-2], 0), (cells[-1].strip(" |"), 1)):
            shown = [speedups()[name, temperature] for name in names]
            assert cell.split("; ") == shown, line
            found += 1
    assert found >= 12


def test_figures_of_the_methods_equal_the_run():
    said = re.compile(
        r"\*\*Measured\*\*: ([\d.]+) × plain decoding at temperature 0, "
        r"([\d.]+) at 1 \([^()]*\[every method\]"
    )
    found = {
        page.stem: match.groups()
        for page in (ROOT / "docs" / "methods").glob("*.md")
        if (match := said.search(" ".join(page.read_text("utf-8").split())))
    }
    assert len(found) >= 8
    for name, shown in found.items():
        assert shown == (speedups()[name, 0], speedups()[name, 1]), name


def test_changed_number_is_noticed_and_mended(copy):
    path = copy / XEON
    path.write_text(path.read_text("utf-8").replace("213.3", "999.9"), "utf-8")
    stale = run(copy, "--check")
    page = "docs/benchmarks/one-request.md"
    assert page in stale
    assert "docs/pictures/numbers.svg" in stale
    assert "|213|" in (copy / page).read_text(encoding="utf-8")
    assert run(copy) == ""
    assert "|1,000|" in (copy / page).read_text(encoding="utf-8")
    assert run(copy, "--check") == ""


def test_report_of_bench_enters_with_date_and_command(copy):
    """A report holds more than is shown, and its machine as an object."""
    row = {
        "name": "plain",
        "temperature": 0.0,
        "tokens_per_second": 27.8,
        "tokens_per_pass": 1.0,
        "speedup_over_plain": [1.0, 1.0, 1.0],
        "speedup_over_generate": [None, 2.8, None],
        "prompts": 2,
    }
    report = {
        "machine": {"cpu": "AMD EPYC", "cores": 2},
        "target": "bundled models as llama-350m",
        "settings": {"max_tokens": 32},
        "rows": [row],
        "date": "2026-11-28",
        "command": "foreword bench --quick",
    }
    path = copy / "docs" / "numbers" / "epyc-avx2" / "mine.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    page = copy / "docs" / "mine.md"
    what = "mine columns=name,temperature,tokens_per_second,speedup_over_generate"
    page.write_text(f"<!-- numbers: {what} -->\n<!-- end -->\n", encoding="utf-8")
    assert run(copy) == ""
    text = page.read_text(encoding="utf-8")
    assert "|Foreword, plain|0|27.8|2.80|" in text
    assert "AMD EPYC, 2026-11-28; bundled models as llama-350m:" in text
    assert "`foreword bench --quick`" in text


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("date", None, 'field "date" is missing'),
        ("date", "yesterday", 'field "date" is not YYYY-MM-DD'),
        ("machine", "", 'field "machine" is not a str with content'),
        ("command", None, 'field "command" is missing'),
        ("rows", [{"name": "lm", "size": 1}], "row 1\" has 'size'"),
        ("rows", [{"name": "lm", "temperature": [1, 2]}], "row 1, temperature"),
        ("rows", [{"name": "lm"}, {"name": "lm"}], 'row 2" repeats the keys'),
        ("keys", ["size"], "which is not a column"),
    ],
)
def test_malformed_file_is_refused_by_name_and_field(copy, field, value, problem):
    path = copy / XEON
    found = json.loads(path.read_text(encoding="utf-8"))
    found[field] = value
    if value is None:
        del found[field]
    path.write_text(json.dumps(found), encoding="utf-8")
    refused = run(copy)
    assert XEON.as_posix() in refused
    assert problem in refused


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("unknown", "docs/numbers has no unknown.json"),
        ("350m-amx columns=speed", "350m-amx has no column 'speed'"),
        ("350m-amx rows=lm,speed", "350m-amx has no row 'speed'"),
        ("350m-amx where=lm", "'where' is none of"),
    ],
)
def test_region_that_asks_for_nothing_known_is_refused(copy, what, problem):
    page = copy / "docs" / "mine.md"
    page.write_text(f"<!-- numbers: {what} -->\n<!-- end -->\n", encoding="utf-8")
    refused = run(copy)
    assert f"cannot fill docs/mine.md: {problem}" in refused


def test_text_outside_of_regions_stays(copy):
    page = copy / "docs" / "mine.md"
    text = "Before\n\n    <!-- numbers: 350m-amx -->\n    <!-- end -->\n\nAfter\n"
    page.write_text(text, encoding="utf-8")
    assert run(copy) == ""
    assert page.read_text(encoding="utf-8") == text
