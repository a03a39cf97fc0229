"""Hands KV pages from a prefill engine to a decode engine, in the words of each protocol.

    decode                       prefill
      | ask key ------------------> |   offers.py: what is kept, under which key
      | <-- where the pages lie     |   service.py, messages.py
      | reads them (pdgate.transfer)|   loads.py
      | release key --------------> |
      | <-- still held? yes         |   only then does the read count

    registry.py    connect("vllm-nixl", ...) -> Connector
    two_sided.py   what all protocols share
    nixl, mooncake, kvt, neuron, sglang: who is asked, by which key, and when

The protocols keep the fields and rules that a gateway sees; between two engines they all
speak the messages of messages.py.
"""
