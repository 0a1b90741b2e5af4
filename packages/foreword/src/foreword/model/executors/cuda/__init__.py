"""The backend that replays CUDA graphs."""
