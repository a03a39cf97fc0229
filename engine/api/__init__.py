"""The engine's HTTP face: the APIs that vLLM has, and its side doors."""
