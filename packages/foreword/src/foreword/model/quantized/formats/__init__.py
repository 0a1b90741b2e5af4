"""One file per form of quantized safetensors."""
