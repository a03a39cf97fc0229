"""Texts as vectors: the hidden state of a prompt's last token, scaled to length 1.

That is what vLLM makes of a causal model that is used to embed with (0.32.0,
vllm/model_executor/layers/pooler, LAST pooling and normalisation). A random model puts texts
nowhere in particular, but equal ones at the same place.

Prompts are read one after another in pages of their own, beside the core: nothing of what it
computes, keeps or counts is touched.
"""

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np

from pdgate.engine.layout import Layout
from pdgate.engine.model.llama import TokenSpan
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.model.weights import Floats
from pdgate.engine.tensors import own_pages

STEP_TOKENS: Final = 512
"""Attention over a whole long prompt at once would take memory by its square."""

_BLOCK_TOKENS: Final = 16


class Pooler:
    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._one_at_a_time = threading.Lock()

    def embed(self, prompt: Sequence[int]) -> Floats:
        """[hidden]; blocks for as long as reading takes. Any thread."""
        with self._one_at_a_time:
            last = self._read(prompt)
        length = np.linalg.norm(last)
        vector: Floats = last / max(length, np.float32(1e-12))
        return vector

    def _read(self, prompt: Sequence[int]) -> Floats:
        config = self._model.config
        blocks = -(-len(prompt) // _BLOCK_TOKENS)
        layout = Layout(
            config.layers,
            blocks,
            config.kv_heads,
            _BLOCK_TOKENS,
            config.head_dim,
            planes=config.kv_planes,
        )
        memory = own_pages(layout, self._model.tensors)
        for start in range(0, len(prompt), STEP_TOKENS):
            span = TokenSpan(prompt[start : start + STEP_TOKENS], start, range(blocks))
            hidden = self._model.decoder.hidden(span, memory)
        last: Floats = hidden[-1]
        return last
