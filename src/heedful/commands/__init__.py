"""One file per command of `heed`. What is heavy is imported inside the function that needs it."""
