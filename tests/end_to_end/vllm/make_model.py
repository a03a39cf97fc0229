"""Writes the model that every engine of these tests serves: python make_model.py DIR

Two Llama layers of seeded noise with a byte-level BPE tokenizer and a chat template, as
Hugging Face files. The same bytes on every machine, so that engines may be compared.

    hidden 128 = 4 heads x 32     vLLM's CPU attention takes no head smaller than 32
    2 KV heads, 2 layers          16 KiB of float32 keys and values for each block of 32 tokens
    vocabulary 384                6 special tokens, 256 bytes, 122 merges learnt from CORPUS
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED: Final = 20
LAYERS: Final = 2
HIDDEN: Final = 128
HEAD: Final = 32
HEADS: Final = 4
KV_HEADS: Final = 2
MLP: Final = 128
VOCABULARY: Final = 384

# Loud enough that one layer's noise decides between tokens: greedy answers then neither
# repeat themselves at once nor hang on the last bits of a sum.
SPREAD: Final = 0.35

SPECIAL: Final = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
BOS, EOS = 1, 2

TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CORPUS: Final = [
    "When the river rose, the miller carried his flour to the upper floor and waited.",
    "A prefill engine reads the prompt once; a decode engine writes the answer word by word.",
    "Which of the two gates should the traveller choose, and who keeps the other one closed?",
    "Nothing was lost on the way: every block arrived, and none of them twice.",
]

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "dtype": "float32",
}


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save(str(folder / "tokenizer.json"))
    write(folder / "config.json", CONFIG)
    write(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[BOS],
            "eos_token": SPECIAL[EOS],
            "unk_token": SPECIAL[0],
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def weights() -> dict[str, np.ndarray]:
    """By Hugging Face's names; matrices are (out, in)."""
    noise = np.random.Generator(np.random.PCG64(SEED))

    def matrix(out: int, in_: int) -> np.ndarray:
        return (noise.standard_normal((out, in_)) * SPREAD).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": ones,
            at + "self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD),
            at + "post_attention_layernorm.weight": ones,
            at + "mlp.gate_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.up_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, MLP),
        }
    return {**tensors, "model.norm.weight": ones, "lm_head.weight": matrix(VOCABULARY, HIDDEN)}


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 2, trainer)
    return made


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
