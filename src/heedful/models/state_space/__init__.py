"""State spaces and linear attention: models with a state of fixed size."""
