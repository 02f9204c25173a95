"""Encoders: models that read a whole text at once."""
