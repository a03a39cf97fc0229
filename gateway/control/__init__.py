"""Control of engines by who trains or operates them: one request here, and all engines of a model do it.

    wire      the routes, in vLLM's words and SGLang's, and what each does to calls
    state     what all processes are to know: held models, engines left out, caches that are void
    board     where they say it, and who has taken it: memory, a folder of workers, Redis
    holds     calls that wait meanwhile, and those that run
    asking    the engines, all at once
    control   the order of it all

Routes of the admin API are in gateway/admin/control.py; docs/rl.md is for who uses them.
"""
