"""What users call: `LLM`, `AsyncLLM`, and the reading of their requests."""
