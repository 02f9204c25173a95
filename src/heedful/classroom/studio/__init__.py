"""The server behind the page. It computes nothing: a route parses a request, calls a function of
`heedful.interp` or `heedful.classroom.figures`, and returns what it gives.

    studio_app        the app: routes, the page and what a browser may do with it
    routes/           one module per group of addresses
    model_registry    which models there are; each is loaded when asked for and has its own thread
    jobs              work in that thread: waiting in line, streamed, ended when nobody waits for it
    trace_builder     one run of a model with its values recorded, described for the page
    traces            the runs that are kept, and what all routes share
    task_runner       the tasks of the page Play: whole, streamed, by beam search, on images
    tokens            tokens and predictions as the page reads them
    capabilities      what a model can show, from its parts
    curated_views     views worth opening, with what each promises
    snippets          the Python that gives what a panel shows
    responses         errors, figures and tensors as answers

The guard, JSON and sockets are those of `heedful.serve`.
"""
