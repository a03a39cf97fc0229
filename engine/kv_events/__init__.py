"""KV events: what becomes of the KV cache's blocks, published as vLLM does.

journal     what happened since the last step, as events
publisher   numbers batches of them, publishes them over ZeroMQ, and repeats what was missed
serving     the publisher of a process, and GET /kv_event_sources, which says where it is
"""
