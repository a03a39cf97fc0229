"""What may come over a wire, in any bytes: it is answered or refused, and nothing breaks.

A target is a module with SEEDS, and `check(data)`, which raises AssertionError, or anything that
gets out by mistake. `test_fuzzing` runs changed seeds through all of them; `make fuzz` lets a
coverage-guided fuzzer look for an hour, or for as long as it is told.

    upstream_answers   an engine's bytes, through our HTTP/1.1 client
    client_bytes       a client's bytes, through the fast front end
    bodies             a request's body, through intake
    events             an engine's stream, through what cuts it into events
"""
