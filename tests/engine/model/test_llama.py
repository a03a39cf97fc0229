"""The decoder against a second one, written from the formulas, without cache or batches."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.layout import Layout
from pdgate.engine.model import weights
from pdgate.engine.model.config import Llama3Scaling, ModelConfig, from_hugging_face
from pdgate.engine.model.layers import rotary_table
from pdgate.engine.model.llama import Llama, TokenSpan, WantedLogits
from pdgate.engine.model.weights import Floats, Weights

HUGGING_FACE = {
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "eos_token_id": [2, 3],
}
CONFIG = from_hugging_face(HUGGING_FACE)
LAYOUT = Layout(layers=2, blocks=12, kv_heads=2, block_tokens=4, head_dim=8)
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 50, 21)]


def drawn(tied: bool = False) -> Weights:
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (50, 24), "model.norm": (24,)}
    if not tied:
        shapes["lm_head"] = (50, 24)
    for index in range(2):
        at = f"model.layers.{index}"
        shapes |= {
            f"{at}.input_layernorm": (24,),
            f"{at}.post_attention_layernorm": (24,),
            f"{at}.self_attn.q_proj": (48, 24),
            f"{at}.self_attn.k_proj": (16, 24),
            f"{at}.self_attn.v_proj": (16, 24),
            f"{at}.self_attn.o_proj": (24, 48),
            f"{at}.mlp.gate_proj": (40, 24),
            f"{at}.mlp.up_proj": (40, 24),
            f"{at}.mlp.down_proj": (24, 40),
        }
    return {
        f"{name}.weight": random.standard_normal(shape).astype(np.float32) * np.float32(0.4)
        for name, shape in shapes.items()
    }


def by_the_book(config: ModelConfig, of: Weights, tokens: list[int]) -> NDArray[np.float64]:
    """Logits of every token in float64, a head and a position at a time."""
    w = {name.removesuffix(".weight"): array.astype(np.float64) for name, array in of.items()}

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        size = np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_eps)
        scaled: NDArray[np.float64] = x / size * w[name]
        return scaled

    def turn(head: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        half = config.head_dim // 2
        angle = position / config.rope_theta ** (np.arange(half) / half)
        pairs = (head[:half] + 1j * head[half:]) * np.exp(1j * angle)
        return np.concatenate((pairs.real, pairs.imag))

    x = w["model.embed_tokens"][tokens]
    for index in range(config.layers):
        at = f"model.layers.{index}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (
            (h @ w[f"{at}.self_attn.{one}_proj"].T).reshape(len(tokens), -1, config.head_dim)
            for one in "qkv"
        )
        mixed = np.zeros_like(q)
        for head in range(config.heads):
            shared = head // (config.heads // config.kv_heads)
            for now in range(len(tokens)):
                asked = turn(q[now, head], now)
                scores = np.array([asked @ turn(k[then, shared], then) for then in range(now + 1)])
                shares = np.exp(scores / np.sqrt(config.head_dim))
                mixed[now, head] = shares / shares.sum() @ v[: now + 1, shared]
        x = x + mixed.reshape(len(tokens), -1) @ w[f"{at}.self_attn.o_proj"].T
        h = norm(x, f"{at}.post_attention_layernorm")
        gate = h @ w[f"{at}.mlp.gate_proj"].T
        up = h @ w[f"{at}.mlp.up_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}.mlp.down_proj"].T
    logits: NDArray[np.float64] = (
        norm(x, "model.norm") @ w.get("lm_head", w["model.embed_tokens"]).T
    )
    return logits


def memory(tp: int = 1) -> KvMemory:
    where = replace(LAYOUT, tp=tp)
    return KvMemory(where, [memoryview(bytearray(where.total_bytes)) for _ in range(tp)])


def close(ours: Floats, right: NDArray[np.float64]) -> bool:
    return np.allclose(ours, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_the_formulas(tied: bool) -> None:
    config = from_hugging_face({**HUGGING_FACE, "tie_word_embeddings": tied})
    of = drawn(tied)

    [(ours, _)] = Llama(config, of, 64).forward(
        [TokenSpan(TOKENS, 0, range(6), WantedLogits.ALL)], memory()
    )

    assert close(ours, by_the_book(config, of, TOKENS))


@pytest.mark.parametrize("tp", [2, 6])
def test_shards_do_not_change_logits(tp: int) -> None:
    """With six shards each of the two KV heads is there three times."""
    config = from_hugging_face(HUGGING_FACE)
    of = drawn()

    [(ours, _)] = Llama(config, of, 64).forward(
        [TokenSpan(TOKENS, 0, range(6), WantedLogits.ALL)], memory(tp)
    )

    assert close(ours, by_the_book(config, of, TOKENS))


def test_neither_pages_nor_chunks_nor_company_change_logits() -> None:
    """Two sequences in scattered blocks, one read in three pieces beside the other."""
    of = drawn()
    llama, pages = Llama(CONFIG, of, 64), memory()
    mine, other = [9, 0, 4, 7, 2, 11], [1, 3, 5, 6]
    llama.forward([TokenSpan(TOKENS[:6], 0, mine, WantedLogits.NONE)], pages)
    llama.forward(
        [
            TokenSpan(TOKENS[6:15], 6, mine, WantedLogits.NONE),
            TokenSpan(TOKENS[:10][::-1], 0, other),
        ],
        pages,
    )

    (theirs, _), (ours, _) = llama.forward(
        [TokenSpan([7], 10, other), TokenSpan(TOKENS[15:], 15, mine)], pages
    )

    assert close(ours, by_the_book(CONFIG, of, TOKENS)[-1:])
    assert close(theirs, by_the_book(CONFIG, of, [*TOKENS[:10][::-1], 7])[-1:])


def test_shards_and_half_precision_load_as_float32(tmp_path: Path) -> None:
    of = dict(drawn())
    half = {"lm_head.weight": of.pop("lm_head.weight").astype(np.float16)}
    save_file(of, tmp_path / "a.safetensors")
    save_file(half, tmp_path / "b.safetensors")
    where = dict.fromkeys(of, "a.safetensors") | dict.fromkeys(half, "b.safetensors")
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": where}))

    found = weights.load_folder(tmp_path)

    assert set(found) == set(where)
    assert np.array_equal(found["model.norm.weight"], of["model.norm.weight"])
    assert found["lm_head.weight"].dtype == np.float32
    assert np.array_equal(found["lm_head.weight"], half["lm_head.weight"].astype(np.float32))


def test_a_bfloat16_is_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes.fromhex("803fc0c0"))

    assert weights.load_file(file)["x"].tolist() == [1.0, -6.0]


def test_llama3_scaling_stretches_slow_turns_only() -> None:
    """With the numbers of Llama 3.1 8B: from the 45th of 64 on all are slow."""
    config = replace(
        CONFIG,
        head_dim=128,
        rope_theta=500000.0,
        rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192),
    )
    plain = 1 / 500000.0 ** (np.arange(64) / 64)

    _, sin = rotary_table(config, 2)

    assert np.allclose(sin[1, :20], np.sin(plain[:20]), rtol=1e-4)
    assert np.allclose(sin[1, 45:], np.sin(plain[45:] / 8), rtol=1e-4)


@pytest.mark.parametrize(
    "change", [{"model_type": "gpt2"}, {"attention_bias": True}, {"rope_scaling": {"type": "yarn"}}]
)
def test_other_models_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"llama|rotary"):
        from_hugging_face({**HUGGING_FACE, **change})
