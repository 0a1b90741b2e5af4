"""Measuring: fixed prompts, plain decoding beside guessing, and what each costs. Sees the library from outside only."""
