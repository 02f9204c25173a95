"""One module per task: what goes in, what comes out, and how the task is trained and scored."""
