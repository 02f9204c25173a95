"""Errors, value checks, files, locks, devices, progress: the floor. It imports nothing else of heedful."""
