"""The parts of a Llama layer, as functions of arrays (arrays.py).

Shapes: t tokens of one sequence or of a whole batch, h heads, c tokens of context,
d = head_dim. Everything is float32.
"""

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.model.arrays import beside, module, split
from pdgate.engine.model.config import ModelConfig
from pdgate.engine.model.weights import Floats


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    xp = module(x)
    mean_square = xp.mean(x * x, axis=-1, keepdims=True)
    normed: Floats = x / xp.sqrt(mean_square + eps) * weight
    return normed


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), in a form that does not overflow."""
    gated: Floats = x * (0.5 + 0.5 * module(x).tanh(0.5 * x))
    return gated


def rotary_table(config: ModelConfig, positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines, [positions, rotary_dim / 2] each."""
    dim = config.rotary_dim
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = 1.0 / np.float32(config.rope_theta) ** exponents
    if (scaling := config.rope_scaling) is not None:
        wavelengths = 2 * np.pi / frequencies
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = scaling.original_positions / wavelengths
        # 0: slow frequencies, stretched by `factor`; 1: fast ones, left alone.
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequencies = frequencies * (blend + (1 - blend) / scaling.factor)
    angles = np.outer(np.arange(positions, dtype=np.float32), frequencies.astype(np.float32))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """[t, h, d] with [t, d / 2]: the first half of each head turns with the second."""
    first, second = split(x, 2, axis=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    turned = (first * c - second * s, second * c + first * s)
    rotated: Floats = module(x).concatenate(turned, axis=-1)
    return rotated


def rotate_neighbours(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate as `rotate` does, but each number with the next one."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    c, s = cos[:, None, :], sin[:, None, :]
    turned: Floats = module(x).stack((first * c - second * s, second * c + first * s), axis=-1)
    return turned.reshape(x.shape)


def attention(q: Floats, k: Floats, v: Floats, start: int, scale: float | None = None) -> Floats:
    """Causal attention of one sequence: q [t, h, d] at positions start.., k [kv, c, d], v [kv, c, e].

    The context ends with the queries themselves (c = start + t). Returns [t, h * e]. `scale` is
    that of scores; 1 / sqrt(d) if it is not given.
    """
    t, heads, dim = q.shape
    kv_heads, context, _ = k.shape
    group = heads // kv_heads
    xp = module(q)
    grouped = q.reshape(t, kv_heads, group, dim).swapaxes(0, 1).swapaxes(1, 2)
    scores: Floats = grouped.reshape(kv_heads, group * t, dim) @ k.swapaxes(1, 2)
    scores *= dim**-0.5 if scale is None else scale
    if t > 1:
        scores = scores.reshape(kv_heads, group, t, context)
        scores[:, :, beside(_hidden(t, context, start), scores)] = -np.inf
        scores = scores.reshape(kv_heads, group * t, context)
    scores -= xp.amax(scores, axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= xp.sum(scores, axis=-1, keepdims=True)
    mixed: Floats = scores @ v
    by_token = mixed.reshape(kv_heads, group, t, -1).swapaxes(1, 2).swapaxes(0, 1)
    return by_token.reshape(t, -1)


def _hidden(t: int, context: int, start: int) -> NDArray[np.bool_]:
    """[t, context]: True where a token would see one that comes after it."""
    return np.arange(context)[None, :] > np.arange(start, start + t)[:, None]
