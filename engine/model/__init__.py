"""A Llama decoder in NumPy, its weights, its tokenizer, and a tiny built-in model.

One idea a file:

    config      the numbers of a Hugging Face config.json
    weights     safetensors files as float32 arrays
    layers      norms, rotary positions, attention: pure functions
    llama       the decoder, over pages of KV cache
    tokenizer   text <-> token ids
    chat        messages -> text, with the model's own template
    builtin     a model for demos and tests that needs no files
    load        which of them, by a path or none
"""
