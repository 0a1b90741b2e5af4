"""The report of a benchmark."""

from foreword.bench.report.by_source import by_source
from foreword.bench.report.regret import Regret, regrets
from foreword.bench.report.report import Report, Row, held_line, rows

__all__ = ["Regret", "Report", "Row", "by_source", "held_line", "regrets", "rows"]
