"""The tests' model with a tower: BLIP-2, all of it seeded noise, as Hugging Face files.

    picture --> 28 x 28 pixels --> 4 patches and a class --> tower, 1 layer --> 4 queries over them --> 4 tokens before the prompt
                                                                                                       of make_model.py's Llama

BLIP-2, because neither vLLM's model nor the image processor of transformers imports torchvision, which install.sh leaves out
(LLaVA's, Qwen's and InternVL's do). It takes one picture a prompt, and no tag in the text says where.

Source: vLLM 0.32.0, vllm/model_executor/models/blip2.py, blip.py (names of weights; one image).
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from tests.end_to_end.vllm import make_model as text

SEED: Final = 21
PIXELS: Final = 28
PATCH: Final = 14
POSITIONS: Final = (PIXELS // PATCH) ** 2 + 1
QUERIES: Final = 4
"""Tokens of a picture."""
WIDTH: Final = 64
"""Of the tower and of the queries; 2 heads x 32."""
HEADS: Final = 2
IMAGE: Final = "<image>"
VOCABULARY: Final = text.VOCABULARY + 1

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Blip2ForConditionalGeneration"],
    "model_type": "blip-2",
    "text_config": {**text.CONFIG, "vocab_size": VOCABULARY},
    "vision_config": {
        "model_type": "blip_2_vision_model",
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "image_size": PIXELS,
        "patch_size": PATCH,
    },
    "qformer_config": {
        "model_type": "blip_2_qformer",
        "vocab_size": 1,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "encoder_hidden_size": WIDTH,
    },
    "num_query_tokens": QUERIES,
    "image_token_index": text.VOCABULARY,
    "tie_word_embeddings": False,
    "bos_token_id": text.BOS,
    "eos_token_id": text.EOS,
    "dtype": "float32",
}

IMAGE_PROCESSOR: Final[dict[str, Any]] = {
    "image_processor_type": "BlipImageProcessor",
    "size": {"height": PIXELS, "width": PIXELS},
}


def make(folder: Path) -> None:
    text.make(folder)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([AddedToken(IMAGE, special=True)])
    tokenizer.save(path)
    text.write(folder / "config.json", CONFIG)
    text.write(folder / "preprocessor_config.json", IMAGE_PROCESSOR)
    text.write(
        folder / "processor_config.json",
        {"processor_class": "Blip2Processor", "num_query_tokens": QUERIES},
    )


def weights() -> dict[str, np.ndarray]:
    """By Hugging Face's names; matrices are (out, in)."""
    noise = np.random.Generator(np.random.PCG64(SEED))

    def some(*shape: int) -> np.ndarray:
        return (noise.standard_normal(shape) * text.SPREAD).astype(np.float32)

    def linear(name: str, out: int, in_: int = WIDTH) -> dict[str, np.ndarray]:
        return {f"{name}.weight": some(out, in_), f"{name}.bias": some(out)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight": np.ones(WIDTH, np.float32),
            f"{name}.bias": np.zeros(WIDTH, np.float32),
        }

    def attention(name: str) -> dict[str, np.ndarray]:
        """Of the queries, among themselves or over the picture."""
        parts = [linear(f"{name}.attention.{part}", WIDTH) for part in ("query", "key", "value")]
        ending = {
            **linear(f"{name}.output.dense", WIDTH),
            **norm(f"{name}.output.LayerNorm"),
        }
        return {**parts[0], **parts[1], **parts[2], **ending}

    words = text.weights()
    # A row for <image>: a picture stands in its place on the way in, and on the way out it is too unlikely to be chosen.
    row = np.zeros((1, text.HIDDEN), np.float32)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        words[name] = np.concatenate([words[name], row])
    tower, queries = "vision_model.encoder.layers.0.", "qformer.encoder.layer.0."
    return {
        **{f"language_model.{name}": matrix for name, matrix in words.items()},
        "vision_model.embeddings.class_embedding": some(1, 1, WIDTH),
        "vision_model.embeddings.position_embedding": some(1, POSITIONS, WIDTH),
        "vision_model.embeddings.patch_embedding.weight": some(WIDTH, 3, PATCH, PATCH),
        "vision_model.embeddings.patch_embedding.bias": some(WIDTH),
        **linear(f"{tower}self_attn.qkv", 3 * WIDTH),
        **linear(f"{tower}self_attn.projection", WIDTH),
        **norm(f"{tower}layer_norm1"),
        **norm(f"{tower}layer_norm2"),
        **linear(f"{tower}mlp.fc1", WIDTH),
        **linear(f"{tower}mlp.fc2", WIDTH),
        **norm("vision_model.post_layernorm"),
        "query_tokens": some(1, QUERIES, WIDTH),
        **norm("qformer.layernorm"),
        **attention(f"{queries}attention"),
        **attention(f"{queries}crossattention"),
        **linear(f"{queries}intermediate_query.dense", WIDTH),
        **linear(f"{queries}output_query.dense", WIDTH),
        **norm(f"{queries}output_query.LayerNorm"),
        **linear("language_projection", text.HIDDEN),
    }
