"""The server behind the page: what panels there are follows from what the assembled model has.

    studio_app        routes, the page, errors as the page reads them
    routes/           one module per group of addresses
    model_registry    which models there are; each is loaded when asked for and has a thread of its own
    trace_builder     one run of a model with its values recorded, described for the page
    traces            the runs that are kept
    capabilities      what a model can show, from its parts
    snippets          the Python that gives what a panel shows

The guard, JSON and sockets are those of `heedful.serve`; numbers come from `heedful.interp`.
"""
