"""A tiny model with latent attention (MLA), of seeded noise."""

from typing import Any, Final

import numpy as np

from pdgate.engine.model.config import ModelConfig, from_hugging_face
from pdgate.engine.model.llama import Llama
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.model.weights import Floats, Weights
from pdgate.engine.tensors import Tensors, putting
from tests.support.engine_cores import tiny

FIELDS: Final[dict[str, Any]] = {
    "model_type": "deepseek_v2",
    # The built-in model's, whose tokenizer it has.
    "vocab_size": tiny().config.vocab_size,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "n_routed_experts": None,
}
CONFIG: Final[ModelConfig] = from_hugging_face(FIELDS)


def weights() -> Weights:
    noise = np.random.default_rng(5)
    vocabulary = CONFIG.vocab_size

    def matrix(*shape: int) -> Floats:
        return noise.standard_normal(shape).astype(np.float32) * np.float32(0.4)

    found = {"model.embed_tokens.weight": matrix(vocabulary, 16), "model.norm.weight": matrix(16)}
    found["lm_head.weight"] = matrix(vocabulary, 16)
    for layer in range(2):
        at = f"model.layers.{layer}."
        found |= {
            at + "input_layernorm.weight": matrix(16),
            at + "self_attn.q_proj.weight": matrix(4 * 10, 16),
            at + "self_attn.kv_a_proj_with_mqa.weight": matrix(12, 16),
            at + "self_attn.kv_a_layernorm.weight": matrix(8),
            at + "self_attn.kv_b_proj.weight": matrix(4 * 11, 8),
            at + "self_attn.o_proj.weight": matrix(16, 4 * 5),
            at + "post_attention_layernorm.weight": matrix(16),
            at + "mlp.gate_proj.weight": matrix(24, 16),
            at + "mlp.up_proj.weight": matrix(24, 16),
            at + "mlp.down_proj.weight": matrix(16, 24),
        }
    return found


def latent_model(tensors: Tensors | None = None) -> LoadedModel:
    decoder = Llama(CONFIG, weights(), 2048, put=putting(tensors))
    return LoadedModel("latent", decoder, tiny().tokenizer, 2048, tensors)
