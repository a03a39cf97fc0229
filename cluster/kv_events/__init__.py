"""Proofs of membership between publishers of KV events and their listeners (ZeroMQ)."""
