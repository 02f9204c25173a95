"""Published weights: which tensor is which (names, ops), reading and writing files (tensor_files, gguf, hub),
filling a model from them and giving them back (published_tensors)."""
