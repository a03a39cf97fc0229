"""The numbers of a Hugging Face config.json, of a Llama or of a DeepSeek-V2 without experts.

Two spellings of the rotary settings are in use: `rope_theta` and `rope_scaling` at the
top level (transformers 4), or both in `rope_parameters` (transformers 5).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

LATENT_KIND: Final = "deepseek_v2"

TINY: Final = "pdgate-tiny"
GUESSABLE: Final = "pdgate-tiny-mtp"
"""Models that need no files (builtin.py)."""


def is_built_in(model: str | None) -> bool:
    """Whether a model is built in, by its name or by none."""
    return model is None or model in (TINY, GUESSABLE)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretches the slow rotary frequencies, as Llama 3.1 does."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention (MLA), whose cache is one row per token for all heads.

    Attributes:
        rank: Of the latent.
        rope: Numbers that carry the position, beside the latent in a row.
        nope, value: Of a head: what of a query or key carries none, and a value.
    """

    rank: int
    rope: int
    nope: int
    value: int

    @property
    def row(self) -> int:
        return self.rank + self.rope


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """
    Attributes:
        kv_heads, head_dim: Of the cache; with `latent` one head, and a row.
    """

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
    latent: Latent | None = None

    @property
    def kv_planes(self) -> int:
        """K and V, or what stands for both."""
        return 2 if self.latent is None else 1

    @property
    def rotary_dim(self) -> int:
        return self.head_dim if self.latent is None else self.latent.rope


def from_hugging_face(fields: Mapping[str, Any]) -> ModelConfig:
    """Raises ValueError for a model that this decoder does not compute."""
    _refuse_others(fields)
    heads = int(fields["num_attention_heads"])
    rope = fields.get("rope_parameters") or {}
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    head_dim = int(fields.get("head_dim") or fields["hidden_size"] // heads)
    latent = _latent(fields)
    if latent is not None:
        kv_heads, head_dim = 1, latent.row
    return ModelConfig(
        vocab_size=int(fields["vocab_size"]),
        hidden_size=int(fields["hidden_size"]),
        intermediate_size=int(fields["intermediate_size"]),
        layers=int(fields["num_hidden_layers"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=int(fields.get("max_position_embeddings", 2048)),
        rms_eps=float(fields.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(rope or fields.get("rope_scaling") or {}),
        tied=bool(fields.get("tie_word_embeddings", False)),
        eos_ids=token_ids(fields.get("eos_token_id")),
        latent=latent,
    )


def token_ids(field: Any) -> frozenset[int]:
    """`eos_token_id` is missing, one id, or a list of them."""
    if field is None:
        return frozenset()
    return frozenset(field) if isinstance(field, list) else frozenset({int(field)})


def _refuse_others(fields: Mapping[str, Any]) -> None:
    kind = fields.get("model_type")
    if kind not in ("llama", LATENT_KIND):
        raise ValueError(f"this engine computes llama and {LATENT_KIND} models only, not {kind!r}")
    if fields.get("attention_bias") or fields.get("mlp_bias"):
        raise ValueError(f"this engine computes llama and {LATENT_KIND} models without biases only")
    if kind == LATENT_KIND:
        layers = int(fields["num_hidden_layers"])
        if fields.get("n_routed_experts") and int(fields.get("first_k_dense_replace", 0)) < layers:
            raise ValueError(f"this engine computes {LATENT_KIND} models without experts only")
        if fields.get("q_lora_rank"):
            raise ValueError("this engine computes queries from the hidden state only: q_lora_rank")
    if fields.get("hidden_act", "silu") != "silu":
        raise ValueError(f"unknown activation {fields['hidden_act']!r}")


def _latent(fields: Mapping[str, Any]) -> Latent | None:
    if fields["model_type"] != LATENT_KIND:
        return None
    return Latent(
        rank=int(fields["kv_lora_rank"]),
        rope=int(fields["qk_rope_head_dim"]),
        nope=int(fields["qk_nope_head_dim"]),
        value=int(fields["v_head_dim"]),
    )


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
