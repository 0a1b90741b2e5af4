"""Provides the quantized matrices of a GGUF file that is written: the type of each, and
its blocks.
"""
