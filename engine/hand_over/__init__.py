"""Hand-over of KV pages from a prefill engine to a decode engine, by each protocol.

    registry.py    connect("vllm-nixl", ...) -> Connector
    two_sided.py   what most protocols share: the engine's end of pdgate.transfer.messenger
    nixl, mooncake, kvt, sglang, decode_first: which engine is asked, by which key, and when
    tickets, claim_desk, lending: decode_first's, who serves which request, and what it may read
    timely_http    where others are asked by HTTP: an answer has a time for all of it
    neuron         the same, but with a messenger of its own: pdgate.engine.neuron

The protocols keep the fields and rules that a gateway sees. With vllm-kvt,
decode-first, vllm-mooncake and neuron prefill writes into decode's pages, with the others decode reads prefill's.
"""
