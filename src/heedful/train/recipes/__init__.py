"""What `heed train` runs: recipes, settings, the run folder, the training loop around `fit`."""
