"""The engine's HTTP face: OpenAI's completions and chat completions, and vLLM's side doors."""
