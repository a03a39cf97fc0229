"""Tells whoever listens what becomes of the KV cache's blocks, as vLLM does.

journal     what happened since the last step, as events
publisher   numbers batches of them, publishes them over ZeroMQ, and repeats what was missed
routes      GET /kv_event_sources: where
"""
