"""Kernels of state spaces in training: Mamba, Mamba-2, gated linear attention."""
