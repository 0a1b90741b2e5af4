"""GGUF files of models and trained heads, for llama.cpp."""
