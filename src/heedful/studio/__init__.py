"""The studio: one page over every number of a model, and the server behind it.

    app         create_app: routes, headers, errors; serve runs it on loopback
    guard       what a request must be: this host, this origin, not too large; and what every answer says
    shelf       which models there are, loaded when asked for, one thread each
    record      what a model has: the page shows panels by it
    trace       one pass with capture, kept for many looks; bounded in bytes
    numbers     tensors as bytes
    tokens      pieces, merges replayed
    snippets    the Python that gives the same numbers
    routes/     one module per page

`docs/studio-api.md` says what each address takes and gives.
"""
