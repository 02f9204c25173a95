"""`heed serve`: models behind the HTTP contract that OpenAI's clients speak.

    openai_app         the application: its addresses, its errors, its metrics; the server on a socket
    generation_routes  completions and conversations
    text_routes        texts in, answers out: embeddings, ranks, tokens
    task_routes        classes, entities, answers, summaries, translations
    openai_server      what all addresses share: models as clients see them, limits, how a body is parsed
    openai_requests    what a request may hold: every field checked by name, type and range
    openai_responses   a request as a job of the engine, and what goes back: whole, or as a stream of events
    openai_errors      why a request is refused
    engine             one thread, its bounded queue, and what it computes for several requests at once
    metrics            what is counted, for Prometheus
    guard              who may ask, and how much
    http_connection    the port, and connections that take too long
    json_response      answers as JSON

The studio uses the last three as well. `docs/serving.md` says what is taken and given.
"""
