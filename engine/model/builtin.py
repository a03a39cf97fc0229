"""A tiny model that needs no files: random weights from a fixed seed, bytes as tokens.

    ids 0..255   the bytes
    ids 256..    <s> </s> and the marks of a chat

Its answers are printable ASCII that means nothing, but they hang on every byte of the
prompt: attention is sharp and louder than the embedding of the last token, so a wrong
page of KV cache changes the answer. That is what makes it a good test of a hand-over.
The gains were found by trial: of 200-byte prompts that differ in one byte, about one
pair in thirty agreed in its first twelve tokens, and an answer ends by itself after
some 200 tokens.

There are two of them. In the second one, attention is duller, so that what it brings changes little from
one token to the next: that is what a draft head can guess from (speculation.py), and what real models have.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from pdgate.engine.model.config import GUESSABLE, TINY, ModelConfig
from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.model.weights import Floats

NAME: Final = TINY
SHARPNESS: Final = {TINY: 2.5, GUESSABLE: 1.4}
"""Gains of queries and keys. With 1.4 about a quarter of the tokens are guessed, and one byte of 250 still changes the answer."""
BYTES: Final = 256
MARKS: Final = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
BOS, EOS = BYTES, BYTES + 1
SEED: Final = 20
EOS_BIAS: Final = -1.0

CONFIG: Final = ModelConfig(
    vocab_size=BYTES + len(MARKS),
    hidden_size=128,
    intermediate_size=256,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=32,
    max_positions=32768,
    eos_ids=frozenset({EOS}),
)

TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'developer' %}<|system|>"
    "{% elif message['role'] == 'function' %}<|tool|>"
    "{% else %}<|{{ message['role'] }}|>{% endif %}"
    "{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def weights(name: str = NAME, seed: int = SEED) -> dict[str, Floats]:
    """Named as in a Hugging Face checkpoint."""
    sharpness = SHARPNESS[name]
    random = np.random.default_rng(seed)
    hidden, dim = CONFIG.hidden_size, CONFIG.head_dim

    def matrix(rows: int, columns: int, gain: float) -> Floats:
        """Multiplies the size of a normalised input by about `gain`."""
        drawn = random.standard_normal((rows, columns), np.float32)
        return drawn * np.float32(gain / columns**0.5)

    named = {
        "model.embed_tokens.weight": random.standard_normal(
            (CONFIG.vocab_size, hidden), np.float32
        ),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(CONFIG.vocab_size, hidden, 3.0),
    }
    for index in range(CONFIG.layers):
        at = f"model.layers.{index}"
        named |= {
            f"{at}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{at}.self_attn.q_proj.weight": matrix(CONFIG.heads * dim, hidden, sharpness),
            f"{at}.self_attn.k_proj.weight": matrix(CONFIG.kv_heads * dim, hidden, sharpness),
            f"{at}.self_attn.v_proj.weight": matrix(CONFIG.kv_heads * dim, hidden, 2.8),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, CONFIG.heads * dim, 2.8),
            f"{at}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
            f"{at}.mlp.gate_proj.weight": matrix(CONFIG.intermediate_size, hidden, 1.0),
            f"{at}.mlp.up_proj.weight": matrix(CONFIG.intermediate_size, hidden, 1.0),
            f"{at}.mlp.down_proj.weight": matrix(hidden, CONFIG.intermediate_size, 1.0),
        }
    return named


def bias() -> Floats:
    """Forbids everything but printable ASCII and the end, and makes the end rare."""
    allowed = np.full(CONFIG.vocab_size, -np.inf, np.float32)
    allowed[ord(" ") : ord("~") + 1] = 0
    allowed[EOS] = EOS_BIAS
    return allowed


def tokenizer() -> Tokenizer:
    ids = {name: byte for byte, name in enumerate(_byte_names())}
    inner = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(inner, frozenset({EOS}), special, TEMPLATE)


def _byte_names() -> Iterator[str]:
    """How the byte-level alphabet of GPT-2 writes each byte, from 0 on.

    Printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(BYTES)
    for byte in range(BYTES):
        yield chr(byte if byte in printable else next(others))
