"""Layers that carry a state along the sequence: state spaces, linear attention, the delta rule."""
