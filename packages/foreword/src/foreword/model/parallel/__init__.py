"""Targets whose weights are split among several processes, the ranks, by transformers'
own plan.

Rank 0 is the process of the engine. It drafts, samples, verifies and allocates pages.
The other ranks repeat its forwards on their share of the weights (docs/scaling/
tensor-parallel.md).
"""
