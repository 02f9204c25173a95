"""Published weights: which tensor is which (names, ops), reading and writing files (files, gguf, hub)."""
