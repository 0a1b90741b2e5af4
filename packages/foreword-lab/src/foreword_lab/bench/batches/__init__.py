"""Benchmark of several requests at a time, alone and beside another program."""
