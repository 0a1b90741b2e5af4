"""`foreword bench`: options and output of the benchmarks in foreword.bench."""

from foreword.cli.benchmarks.measurements import bench

__all__ = ["bench"]
