"""The paged KV cache: memory, who owns which block, and which blocks can be used again."""
