"""Greedy tokens are vLLM's.

Recorded from vLLM 0.32.0 on the CPU (float32, eager, block size 32), which was given the
built-in model's weights as a Hugging Face folder. It knows no bias, so ours is left out.
"""

from itertools import pairwise

import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.layout import Layout
from pdgate.engine.model import builtin
from pdgate.engine.model.llama import Llama, TokenSpan

CONFIG = builtin.CONFIG
LAYOUT = Layout(CONFIG.layers, 64, CONFIG.kv_heads, 16, CONFIG.head_dim)
BLOCKS = range(64)

# fmt: off
RECORDED = {
    "Hello": [
        93, 126, 116, 163, 37, 253, 37, 163, 99, 85, 170, 37,
        134, 27, 8, 43, 26, 146, 31, 83, 96, 5, 163, 52,
    ],
    "The quick brown fox jumps over the lazy dog.": [
        59, 225, 53, 40, 116, 79, 160, 57, 99, 209, 63, 64,
        218, 201, 82, 53, 237, 144, 55, 0, 233, 85, 174, 89,
    ],
    "KV cache " * 30: [
        195, 172, 79, 70, 114, 251, 104, 172, 79, 154, 194, 79,
        70, 7, 205, 172, 79, 217, 217, 25, 64, 121, 172, 79,
    ],
}
# fmt: on


@pytest.mark.parametrize("text", RECORDED)
def test_greedy_tokens_are_those_of_vllm(text: str) -> None:
    llama = Llama(CONFIG, builtin.weights(), 1024)
    memory = KvMemory(LAYOUT, [memoryview(bytearray(LAYOUT.total_bytes))])
    tokens = builtin.tokenizer().encode(text)
    ends = [0, *range(len(tokens), len(tokens) + len(RECORDED[text]))]

    for start, end in pairwise(ends):
        [(logits, _)] = llama.forward([TokenSpan(tokens[start:end], start, BLOCKS)], memory)
        tokens.append(int(logits[-1].argmax()))

    assert tokens[-len(RECORDED[text]) :] == RECORDED[text]
