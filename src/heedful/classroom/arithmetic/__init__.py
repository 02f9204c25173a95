"""Worked numbers: `heed explain`."""
