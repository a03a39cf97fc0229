"""A model with latent attention: what is cached is one row for all heads, and that is enough."""

import numpy as np
import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.layout import Layout
from pdgate.engine.model import layers
from pdgate.engine.model.config import ModelConfig, from_hugging_face
from pdgate.engine.model.llama import Llama, TokenSpan, WantedLogits
from pdgate.engine.model.weights import Floats, Weights
from tests.support.latent_models import CONFIG, FIELDS, weights

TOKENS = [3, 17, 8, 30, 2, 11, 5]
BLOCKS = [4, 1, 6]


def memory(tp: int) -> KvMemory:
    layout = Layout(2, 8, 1, 4, CONFIG.head_dim, tp=tp, planes=1)
    return KvMemory(layout, [memoryview(bytearray(layout.total_bytes)) for _ in range(tp)])


def plainly(config: ModelConfig, found: Weights) -> Floats:
    """Logits of all tokens, with keys and values made of each latent, as the paper has it first."""
    latent = config.latent
    assert latent is not None
    t = len(TOKENS)
    cos, sin = layers.rotary_table(config, t)
    x = found["model.embed_tokens.weight"][TOKENS]
    unseen = np.triu(np.full((t, t), -np.inf, np.float32), 1)
    for layer in range(2):

        def take(name: str, layer: int = layer) -> Floats:
            return found[f"model.layers.{layer}.{name}.weight"]

        normed = layers.rms_norm(x, take("input_layernorm"), config.rms_eps)
        q = (normed @ take("self_attn.q_proj").T).reshape(t, 4, 10)
        row = normed @ take("self_attn.kv_a_proj_with_mqa").T
        c = layers.rms_norm(row[:, :8], take("self_attn.kv_a_layernorm"), config.rms_eps)
        made = (c @ take("self_attn.kv_b_proj").T).reshape(t, 4, 11)
        turned = layers.rotate_neighbours(row[:, None, 8:], cos, sin)
        k = np.concatenate((made[..., :6], np.repeat(turned, 4, axis=1)), axis=-1)
        q = np.concatenate((q[..., :6], layers.rotate_neighbours(q[..., 6:], cos, sin)), axis=-1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(10) + unseen
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", share, made[..., 6:]).reshape(t, -1)
        x = x + mixed @ take("self_attn.o_proj").T
        normed = layers.rms_norm(x, take("post_attention_layernorm"), config.rms_eps)
        gate, up = normed @ take("mlp.gate_proj").T, normed @ take("mlp.up_proj").T
        x = x + (layers.silu(gate) * up) @ take("mlp.down_proj").T
    final = layers.rms_norm(x, found["model.norm.weight"], config.rms_eps)
    logits: Floats = (final @ found["lm_head.weight"].T).astype(np.float32)
    return logits


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_logits_from_the_rows_are_those_from_keys_and_values(tp: int) -> None:
    """In two chunks, so that the second reads what the first has cached, in each shard's own copy."""
    found, pages = weights(), memory(tp)
    llama = Llama(CONFIG, found, 16)

    [(first, _)] = llama.forward([TokenSpan(TOKENS[:5], 0, BLOCKS, WantedLogits.ALL)], pages)
    [(second, _)] = llama.forward([TokenSpan(TOKENS[5:], 5, BLOCKS, WantedLogits.ALL)], pages)

    assert np.allclose(np.concatenate((first, second)), plainly(CONFIG, found), atol=1e-4)


def test_what_is_cached_is_one_row() -> None:
    assert (CONFIG.kv_heads, CONFIG.head_dim, CONFIG.kv_planes) == (1, 12, 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"n_routed_experts": 8}, "without experts"), ({"q_lora_rank": 4}, "q_lora_rank")],
)
def test_what_it_does_not_compute_is_refused(change: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_hugging_face({**FIELDS, **change})


def test_experts_that_come_after_the_last_layer_are_none() -> None:
    assert from_hugging_face({**FIELDS, "n_routed_experts": 8, "first_k_dense_replace": 2})
