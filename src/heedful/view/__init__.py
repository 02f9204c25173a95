"""Figures of what happens inside a model."""
