"""LoRA adapters that clients load and unload."""
