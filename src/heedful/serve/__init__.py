"""`heed serve`: models behind the HTTP contract that OpenAI's clients speak.

    openai_app         the application: its addresses, its errors, its metrics
    generation_routes  completions and conversations
    text_routes        embeddings, and texts as tokens
    openai_server      what all addresses share; how a body becomes a request
    openai_requests    what a request may hold: every field checked by name, type and range
    openai_responses   the shapes that go back, whole or as events
    openai_errors      what a request is refused for
    served_model       one model as clients see it: prompts, context, conversations, capabilities
    generation_jobs    what the engine does for a request
    engine             one thread, its bounded queue, and the batches of texts it steps
    metrics            what is counted, for Prometheus
    streams            from the engine to the client: events, pings, a client that goes away
    draining           a socket, signals, an end that lets the last answer out

`docs/serving.md` says what is taken and given.
"""
