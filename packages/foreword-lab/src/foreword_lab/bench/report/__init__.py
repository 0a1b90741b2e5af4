"""The report of a benchmark."""

from foreword_lab.bench.report.by_source import by_source
from foreword_lab.bench.report.regret import Regret, regrets
from foreword_lab.bench.report.report import Report, Row, held_line, rows

__all__ = ["Regret", "Report", "Row", "by_source", "held_line", "regrets", "rows"]
