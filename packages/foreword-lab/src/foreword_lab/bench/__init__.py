"""Benchmarks: fixed prompts, plain decoding beside speculative decoding, and the cost
of each.
"""
