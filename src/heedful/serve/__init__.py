"""`heed serve`: models behind the HTTP contract that OpenAI's clients speak.

    wire        what a request may hold: every field asked for by name, type and range
    served      one model as clients see it: prompts, contexts, conversations, what it can do
    work        what the engine does for a request, token by token
    answers     the shapes that go back, whole or as events
    engine      one thread and its bounded line; the event loop waits for nothing else
    streams     from the engine to the client: events, pings, a client that goes away
    app         the addresses
    running     a socket, signals, an end that lets the last answer out
    errors      what a request is refused for

`docs/serving.md` says what is taken and given.
"""
