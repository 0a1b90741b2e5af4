"""LoRA adapters of a target: read from PEFT folders, added to the rows of a forward."""
