"""Published weights: which tensor is which (names, ops), and how files are read and written (files, gguf, hub)."""
