"""One module per kind of example: how it is read, cut into rows and made into batches."""
