"""`foreword bench`: options and output of the benchmarks in foreword.bench."""

from foreword.cli.benchmarks import measurements as _  # registers the commands
from foreword.cli.benchmarks.group import bench

__all__ = ["_", "bench"]
