"""Batch of calls without a client: a file goes in, its answers come out (docs/operations/batches.md)."""
