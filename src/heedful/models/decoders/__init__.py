"""Decoders: models that predict the next token."""
