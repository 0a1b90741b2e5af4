"""Every query of the Grafana dashboard finds what a server that answered exports."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foreword import LLM
from serving import running

BOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "foreword.json"
VARIABLES = {"$__rate_interval": "5m", "$model": ".*"}
"""What Grafana puts in their place."""


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield the title, the query and the legend of every line of the dashboard."""
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            yield panel["title"], query, target["legendFormat"]


@dataclass
class Found:
    """What a query selects, and the labels that it keeps."""

    selectors: list[promql.VectorSelector] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)

    def look(self, part: Any) -> None:
        """Look at an expression and its parts."""
        if isinstance(part, promql.VectorSelector):
            self.selectors.append(part)
        elif isinstance(part, promql.MatrixSelector):
            self.selectors.append(part.vector_selector)
        elif isinstance(part, promql.BinaryExpr):
            self.look(part.lhs)
            self.look(part.rhs)
        elif isinstance(part, promql.Call):
            for argument in part.args:
                self.look(argument)
        elif isinstance(part, promql.AggregateExpr):
            if part.modifier is not None:
                self.labels |= set(part.modifier.labels)
            self.look(part.expr)
        elif isinstance(part, promql.ParenExpr):
            self.look(part.expr)
        else:
            assert isinstance(part, promql.NumberLiteral), part


def matches(selector: promql.VectorSelector, name: str, labels: dict[str, str]) -> bool:
    """Return whether a series is selected."""
    given = selector.matchers.matchers
    assert {str(one.op) for one in given} <= {"MatchOp.Re"}
    return name == selector.name and all(
        re.fullmatch(one.value, labels.get(one.name, "")) for one in given
    )


@pytest.fixture(scope="module")
def series() -> list[tuple[str, dict[str, str]]]:
    """Return what a server exports after an answer with drafts and one without."""
    with LLM(slots=2, nodes=4) as llm, running(llm) as server:
        for method in ("lm", "none"):
            server.post(
                "/v1/chat/completions",
                model=f"foreword-family:{method}",
                messages=[{"role": "user", "content": "Define the word river."}],
                max_tokens=16,
                seed=1,
            )
        text = server.http.get("/metrics").text
    families = text_string_to_metric_families(text)
    return [(one.name, one.labels) for family in families for one in family.samples]


@pytest.mark.parametrize(
    ("query", "legend"), [pytest.param(*one, id=title) for title, *one in queries()]
)
def test_query_finds_series(series, query, legend):
    found = Found()
    found.look(promql.parse(query))
    assert found.selectors
    for selector in found.selectors:
        chosen = [labels for name, labels in series if matches(selector, name, labels)]
        assert chosen, f"{selector.name} is not exported"
        assert found.labels <= chosen[0].keys()
    # a legend names what the query groups by
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= found.labels


def test_panels_do_not_overlap_and_have_descriptions():
    places: set[tuple[int, int]] = set()
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        assert panel["description"]
        assert at["x"] + at["w"] <= 24
        own = {
            (at["x"] + column, at["y"] + row)
            for column in range(at["w"])
            for row in range(at["h"])
        }
        assert not places & own
        places |= own
