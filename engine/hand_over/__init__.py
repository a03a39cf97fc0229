"""Hands KV pages from a prefill engine to a decode engine, in the words of each protocol.

    registry.py    connect("vllm-nixl", ...) -> Connector
    two_sided.py   what all protocols share: the engine's end of pdgate.transfer.messenger
    nixl, mooncake, kvt, neuron, sglang: who is asked, by which key, and when

The protocols keep the fields and rules that a gateway sees; between two engines they all
speak the messages of the messenger. With vllm-kvt and vllm-mooncake prefill writes into
decode's pages, with the others decode reads prefill's.
"""
