"""PdgateConnector: stock vLLM speaks pdgate's hand-over protocols, unpatched.

    EngineCore process                    worker processes, one for each rank
    scheduler_side  -- orders, per step -> worker_side   is a `Core` (engine/connector.py)
       | pure: which requests are held       | the same hand-over code as our own engine's
       | or fetched, in which blocks      dialects, on vLLM's own KV cache
       <---- reports: sent, received, failed -- reports

    connector.py   every hook of vLLM's; no decisions
    guard.py       an exception in a hook ends one request, not the engine, and is not logged
                   on every step
    surface.py     all that is imported from vLLM, and the versions that it is tested on
    settings.py    what kv_transfer_config says
    intent.py      what a request's kv_transfer_params ask for; vLLM's request ids
    orders.py      what the scheduler's side tells the worker's
    scheduler_side, worker_side, reports
    running.py     what lives in the worker, put together
    dialects.py    vllm-kvt and vllm-nixl at one port; pull, push and layerwise;
                   for D also with a prefill queue
    answers.py     what P answers in vllm-nixl
    names.py       the two names of a prefill that D asked for
    kv_region.py   vLLM's KV tensors as pages, in memory that another process can map
    census.py      workers of one engine: what each has, and the layout of them all
    prefill_call.py   P asks itself for a prefill that D wants
    passes.py      what lets P's other workers know such a prefill
    metrics, stats counters, and vLLM's classes around them

Start vLLM with `kv_connector_module_path` "pdgate.engine.vllm.connector".
"""
