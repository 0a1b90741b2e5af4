"""Baselines: transformers, llama.cpp and OpenVINO on the same weights and prompts."""
