"""A Llama decoder over pages of KV cache, or one with latent attention (attentions.py).

One call computes a batch of spans, each a run of tokens of one sequence:

    spans -> embed -> [norm, project, write pages, attend over pages, mlp] * layers -> logits

The projections see all spans as one matrix; attention goes span by span, since every
sequence has its own context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from pdgate.engine.cache.memory import PagedKv, TokenRun, slots
from pdgate.engine.model import layers
from pdgate.engine.model.arrays import beside, host, split
from pdgate.engine.model.attentions import Attention, Put, attention_of
from pdgate.engine.model.config import ModelConfig
from pdgate.engine.model.weights import Floats, Weights


class WantedLogits(Enum):
    """Tokens of a span whose logits are asked."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens [start, start + len(tokens)) of a sequence; its earlier ones are in the pages."""

    tokens: Sequence[int]
    start: int
    block_ids: Sequence[int]
    wanted: WantedLogits = WantedLogits.LAST

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices are [in, out]; gate and up are one."""

    attention_norm: Floats
    attention: Attention
    mlp_norm: Floats
    gate_up: Floats
    down: Floats


class Llama:
    """
    Args:
        positions: The longest sequence that will be asked for.
        bias: Added to the logits, [vocab]; -inf forbids a token.
        put: Brings weights to where they are computed with; the pages have to be there too.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        positions: int,
        bias: Floats | None = None,
        put: Put = lambda array: array,
    ) -> None:
        self.config = config
        embedding = weights["model.embed_tokens.weight"]
        self._embedding = put(embedding)
        self._layers = [_layer(config, weights, i, put) for i in range(config.layers)]
        self._norm = put(weights["model.norm.weight"])
        head = embedding if config.tied else weights["lm_head.weight"]
        self._head = put(np.ascontiguousarray(head.T))
        self._bias = None if bias is None else put(bias)
        self._cos, self._sin = map(put, layers.rotary_table(config, positions))

    def forward(
        self,
        spans: Sequence[TokenSpan],
        memory: PagedKv,
        filled: Callable[[int], None] | None = None,
    ) -> list[tuple[Floats, Floats]]:
        """Fill the pages of the spans, and return each span's logits, [0, 1 or t, vocab], beside what the last layer made
        of the same tokens, [t, hidden]; where no logits are wanted, of the last one.

        `filled` is called with a layer's number as soon as its pages are, which is before
        anything that depends on them is computed.
        """
        computed = self._computed(spans, memory, filled)
        ends = np.cumsum([len(span.tokens) for span in spans])
        states = [
            host(computed[end - (len(span.tokens) if span.wanted is WantedLogits.ALL else 1) : end])
            for span, end in zip(spans, ends, strict=True)
        ]
        return list(zip(self._logits(computed, spans), states, strict=True))

    def head(self, states: Floats) -> Floats:
        """Logits of what the last layer made of some tokens, [t, vocab]."""
        if isinstance(states, np.ndarray):
            states = beside(states, self._norm)
        normed = layers.rms_norm(states, self._norm, self.config.rms_eps)
        logits: Floats = normed @ self._head
        if self._bias is not None:
            logits += self._bias
        return host(logits)

    def embedding(self, token: int) -> Floats:
        """What a token is before the first layer, [hidden]."""
        return host(self._embedding[token])

    def hidden(self, span: TokenSpan, memory: PagedKv) -> Floats:
        """Fills the pages of a span and returns what the head would read, [t, hidden]."""
        computed = self._computed([span], memory, None)
        return host(layers.rms_norm(computed, self._norm, self.config.rms_eps))

    def _computed(
        self,
        spans: Sequence[TokenSpan],
        memory: PagedKv,
        filled: Callable[[int], None] | None,
    ) -> Floats:
        """What the last layer makes of the tokens, [t, hidden]."""
        config = self.config
        ids = np.concatenate([np.asarray(span.tokens, np.intp) for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        runs = [TokenRun(span.start, len(span.tokens), span.block_ids) for span in spans]
        places = slots(memory.layout, runs)
        at = beside(positions, self._cos)
        cos, sin = self._cos[at], self._sin[at]

        x: Floats = self._embedding[beside(ids, self._embedding)]
        for index, layer in enumerate(self._layers):
            normed = layers.rms_norm(x, layer.attention_norm, config.rms_eps)
            q, planes = layer.attention.project(normed, cos, sin)
            memory.write(index, places, planes)
            if filled is not None:
                filled(index)
            x = x + layer.attention.finish(memory.attend(index, q, runs, layer.attention.mix))
            normed = layers.rms_norm(x, layer.mlp_norm, config.rms_eps)
            gate, up = split(normed @ layer.gate_up, 2, axis=-1)
            gated: Floats = layers.silu(gate) * up
            down: Floats = gated @ layer.down
            x = x + down
        return x

    def _logits(self, x: Floats, spans: Sequence[TokenSpan]) -> list[Floats]:
        rows: list[int] = []
        counts = []
        end = 0
        for span in spans:
            begin, end = end, end + len(span.tokens)
            match span.wanted:
                case WantedLogits.NONE:
                    begin = end
                case WantedLogits.LAST:
                    begin = end - 1
                case WantedLogits.ALL:
                    pass
            rows.extend(range(begin, end))
            counts.append(end - begin)
        return np.split(self.head(x[rows]), np.cumsum(counts)[:-1])


def _layer(config: ModelConfig, weights: Weights, index: int, put: Put) -> _Layer:
    def take(name: str) -> Floats:
        return weights[f"model.layers.{index}.{name}.weight"]

    def merged(*names: str) -> Floats:
        return put(np.ascontiguousarray(np.concatenate([take(name) for name in names]).T))

    return _Layer(
        attention_norm=put(take("input_layernorm")),
        attention=attention_of(config, take, put),
        mlp_norm=put(take("post_attention_layernorm")),
        gate_up=merged("mlp.gate_proj", "mlp.up_proj"),
        down=merged("mlp.down_proj"),
    )
