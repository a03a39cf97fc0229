"""Writes a model with latent attention (MLA), of make_model.py's kind: python make_latent_model.py DIR

Two DeepSeek-V2 layers of seeded noise without experts. vLLM's CPU kernel takes a cache row of 576 numbers
only: a latent of 512 and 64 that carry the position, the same for all heads.

    cache    16 tokens x 576 x 4 bytes for each block and layer, one head whatever the rank
"""

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from tests.end_to_end.vllm import make_model
from tests.end_to_end.vllm.make_model import HEADS, HIDDEN, LAYERS, MLP, SEED, SPREAD, VOCABULARY

LATENT: Final = 512
ROPE: Final = 64
NOPE: Final = 32
VALUE: Final = 32
ROW: Final = LATENT + ROPE

CONFIG: Final[dict[str, Any]] = {
    **make_model.CONFIG,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": HEADS,
    "head_dim": ROPE,
    "kv_lora_rank": LATENT,
    "q_lora_rank": None,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE,
    # Every layer comes before the first with experts.
    "first_k_dense_replace": LAYERS,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": MLP,
    "moe_layer_freq": 1,
}


def make(folder: Path) -> None:
    make_model.make(folder)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    make_model.write(folder / "config.json", CONFIG)


def weights() -> dict[str, np.ndarray]:
    """By Hugging Face's names; matrices are (out, in)."""
    noise = np.random.Generator(np.random.PCG64(SEED))

    def matrix(out: int, in_: int, spread: float = SPREAD) -> np.ndarray:
        return (noise.standard_normal((out, in_)) * spread).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": ones,
            at + "self_attn.q_proj.weight": matrix(HEADS * (NOPE + ROPE), HIDDEN),
            at + "self_attn.kv_a_proj_with_mqa.weight": matrix(ROW, HIDDEN),
            at + "self_attn.kv_a_layernorm.weight": np.ones(LATENT, np.float32),
            # A sum over four times as many numbers.
            at + "self_attn.kv_b_proj.weight": matrix(HEADS * (NOPE + VALUE), LATENT, SPREAD / 2),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * VALUE),
            at + "post_attention_layernorm.weight": ones,
            at + "mlp.gate_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.up_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, MLP),
        }
    return {**tensors, "model.norm.weight": ones, "lm_head.weight": matrix(VOCABULARY, HIDDEN)}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
