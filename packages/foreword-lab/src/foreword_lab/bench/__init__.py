"""Benchmarks: fixed prompts, plain and speculative decoding, and the cost of each."""
