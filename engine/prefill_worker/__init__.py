"""Prefill worker: takes prompts off the prefill queue for an engine, one at a time.

    queue                  worker                     decode engine        prefill engine
      | -- item ----------> |                              |                     |
      |                     | -- claim: engine's address > |                     |
      | <-- hold, now and   | <-- yours ------------------ |                     |
      |     then ---------- |                              | -- prompt, pages -> |
      |                     |                              | <-- KV by layer --- |
      |                     | <-- over ------------------- |                     |
      | <-- done ---------- |                              |                     |

    wire.py      what worker and decode engine say to each other
    claim.py     the worker's end of it
    worker.py    the loop, on a thread, and whether the engine is up
    cli.py       `pdgate prefill-worker`, for an engine that has none inside

The worker moves nothing: the decode engine itself asks the prefill engine that the call
names, and knows best how that ended. So a worker may die at any moment without any harm.
"""
