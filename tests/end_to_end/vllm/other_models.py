"""Models that a test makes for itself, beside the one of make_model.py, whose tokenizer and noise they share.

latent     DeepSeek-V2's attention: a latent of 512 + 64 numbers for each token and layer, the only size that vLLM
           0.32.0 decodes on a CPU (v1/attention/backends/mla/cpu_mla.py); dense layers, no experts
windowed   the model of make_model.py, of which some layers see the last WINDOW tokens only
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from tests.end_to_end.vllm import make_model
from tests.end_to_end.vllm.make_model import CONFIG, HIDDEN, LAYERS, MLP, SEED, SPREAD, VOCABULARY

HEADS: Final = 4
LATENT: Final = 512
ROPE: Final = 64
NOPE: Final = 32
VALUE: Final = 32
LATENT_BYTES: Final = (LATENT + ROPE) * LAYERS * 4
"""Of one token, in float32."""

WINDOW: Final = 64

LATENT_CONFIG: Final[dict[str, Any]] = {
    **{name: value for name, value in CONFIG.items() if name != "mlp_bias"},
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": HEADS,
    "head_dim": ROPE,
    "q_lora_rank": None,
    "kv_lora_rank": LATENT,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "first_k_dense_replace": LAYERS,
    "n_routed_experts": 1,
    "num_experts_per_tok": 1,
}


def latent(folder: Path) -> Path:
    make_model.make(folder)
    save_file(latent_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    make_model.write(folder / "config.json", LATENT_CONFIG)
    return folder


def windowed(folder: Path, layers: Sequence[str]) -> Path:
    """`layers`: "full_attention" or "sliding_attention", for each."""
    make_model.make(folder)
    more = {"layer_types": list(layers), "sliding_window": WINDOW}
    make_model.write(folder / "config.json", {**CONFIG, **more})
    return folder


def latent_weights() -> dict[str, np.ndarray]:
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
            at + "self_attn.kv_a_proj_with_mqa.weight": matrix(LATENT + ROPE, HIDDEN),
            at + "self_attn.kv_a_layernorm.weight": np.ones(LATENT, np.float32),
            # Of 512 numbers in place of 128.
            at + "self_attn.kv_b_proj.weight": matrix(HEADS * (NOPE + VALUE), LATENT, SPREAD / 2),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * VALUE),
            at + "post_attention_layernorm.weight": ones,
            at + "mlp.gate_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.up_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, MLP),
        }
    return {**tensors, "model.norm.weight": ones, "lm_head.weight": matrix(VOCABULARY, HIDDEN)}
