"""File formats of weights: safetensors, shards, GGUF. They know no model."""
