"""The numbers of a Hugging Face Llama config.json.

Two spellings of the rotary settings are in use: `rope_theta` and `rope_scaling` at the
top level (transformers 4), or both in `rope_parameters` (transformers 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches the slow rotary frequencies, as Llama 3.1 does."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rms_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    tied: bool = False
    eos_ids: frozenset[int] = frozenset()


def from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """Raises ValueError for a model that this decoder does not compute."""
    _refuse_others(fields)
    heads = int(fields["num_attention_heads"])
    rope = fields.get("rope_parameters") or {}
    return ModelConfig(
        vocab_size=int(fields["vocab_size"]),
        hidden_size=int(fields["hidden_size"]),
        intermediate_size=int(fields["intermediate_size"]),
        layers=int(fields["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or fields["hidden_size"] // heads),
        max_positions=int(fields.get("max_position_embeddings", 2048)),
        rms_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(rope or fields.get("rope_scaling") or {}),
        tied=bool(fields.get("tie_word_embeddings", False)),
        eos_ids=token_ids(fields.get("eos_token_id")),
    )


def token_ids(field: Any) -> frozenset[int]:
    """`eos_token_id` is missing, one id, or a list of them."""
    if field is None:
        return frozenset()
    return frozenset(field) if isinstance(field, list) else frozenset({int(field)})


def _refuse_others(fields: Mapping[str, Any]) -> None:
    kind = fields.get("model_type")
    if kind != "llama":
        raise ValueError(f"this engine computes llama models only, not {kind!r}")
    if fields.get("attention_bias") or fields.get("mlp_bias"):
        raise ValueError("this engine computes llama models without biases only")
    if fields.get("hidden_act", "silu") != "silu":
        raise ValueError(f"unknown activation {fields['hidden_act']!r}")


def _scaling(rope: Mapping[str, Any]) -> Llama3Scaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"unknown rotary scaling {kind!r}")
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_positions=int(rope["original_max_position_embeddings"]),
    )
