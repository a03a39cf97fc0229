"""The two kinds of attention, as what stands before and behind the scores.

    heads     q, k, v of each head; a cache of two planes
    latent    one row per token for all heads: a latent, from which each head makes keys and values,
              and a part that carries the position; a cache of one plane

With a latent the matrices that would make keys and values of it go to the other side of the scores: into
the query, and behind the mix. So what is cached is all that is ever read (MLA, absorbed).

Source: DeepSeek-V2, section 2.1; vLLM 0.32.0, model_executor/layers/attention/mla_attention.py, whose cache
holds the same rows: the latent after its norm, and the key's rotated part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from pdgate.engine.cache.memory import Mix
from pdgate.engine.model import layers
from pdgate.engine.model.arrays import module, split
from pdgate.engine.model.config import Latent, ModelConfig
from pdgate.engine.model.weights import Floats

Take = Callable[[str], Floats]
"""A matrix of a layer by its name, [out, in]; a norm's is [size]."""
Put = Callable[[Floats], Floats]
"""Brings weights to where they are computed with."""


class Attention(ABC):
    mix: Mix

    @abstractmethod
    def project(self, x: Floats, cos: Floats, sin: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        """Queries [t, heads, d], and what is cached: planes of [t, kv_heads, head_dim]."""

    @abstractmethod
    def finish(self, mixed: Floats) -> Floats:
        """What the layer adds, from the mix of values [t, heads * value_dim]."""


class HeadsAttention(Attention):
    def __init__(self, config: ModelConfig, take: Take, put: Put) -> None:
        self.mix = Mix(None, config.head_dim)
        self._head_dim = config.head_dim
        self._widths = [config.heads, config.heads + config.kv_heads]
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self._qkv = put(np.ascontiguousarray(np.concatenate([take(name) for name in names]).T))
        self._out = put(np.ascontiguousarray(take("self_attn.o_proj").T))

    def project(self, x: Floats, cos: Floats, sin: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        qkv = (x @ self._qkv).reshape(len(x), -1, self._head_dim)
        q, k, v = split(qkv, self._widths, axis=1)
        return layers.rotate(q, cos, sin), (layers.rotate(k, cos, sin), v)

    def finish(self, mixed: Floats) -> Floats:
        return mixed @ self._out


class LatentAttention(Attention):
    def __init__(self, config: ModelConfig, latent: Latent, take: Take, put: Put) -> None:
        self.mix = Mix(float((latent.nope + latent.rope) ** -0.5), latent.rank)
        self._latent = latent
        self._heads = config.heads
        self._eps = config.rms_eps
        self._query = put(np.ascontiguousarray(take("self_attn.q_proj").T))
        self._row = put(np.ascontiguousarray(take("self_attn.kv_a_proj_with_mqa").T))
        self._norm = put(take("self_attn.kv_a_layernorm"))
        # [heads, nope + value, rank]
        both = take("self_attn.kv_b_proj").reshape(config.heads, -1, latent.rank)
        self._to_latent = put(np.ascontiguousarray(both[:, : latent.nope]))
        self._to_value = put(np.ascontiguousarray(both[:, latent.nope :].transpose(0, 2, 1)))
        self._out = put(np.ascontiguousarray(take("self_attn.o_proj").T))

    def project(self, x: Floats, cos: Floats, sin: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        sizes = self._latent
        q = (x @ self._query).reshape(len(x), self._heads, -1)
        xp = module(x)
        plain, placed = split(q, [sizes.nope], axis=-1)
        absorbed = (plain.swapaxes(0, 1) @ self._to_latent).swapaxes(0, 1)
        turned = layers.rotate_neighbours(placed, cos, sin)
        queries: Floats = xp.concatenate((absorbed, turned), axis=-1)
        latent, key = split(x @ self._row, [sizes.rank], axis=-1)
        normed = layers.rms_norm(latent, self._norm, self._eps)[:, None, :]
        rotated = layers.rotate_neighbours(key[:, None, :], cos, sin)
        return queries, (xp.concatenate((normed, rotated), axis=-1),)

    def finish(self, mixed: Floats) -> Floats:
        by_head = mixed.reshape(len(mixed), self._heads, -1).swapaxes(0, 1)
        values: Floats = (by_head @ self._to_value).swapaxes(0, 1)
        finished: Floats = values.reshape(len(mixed), -1) @ self._out
        return finished


def attention_of(config: ModelConfig, take: Take, put: Put) -> Attention:
    if config.latent is None:
        return HeadsAttention(config, take, put)
    return LatentAttention(config, config.latent, take, put)
