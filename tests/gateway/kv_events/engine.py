"""A KV cache that names its blocks as it likes, and says what becomes of them; for tests."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from pdgate.gateway.kv_events.events import EventBatch, read


class KvCache:
    """
    Args:
        seed: Another one names the same blocks otherwise.
    """

    def __init__(self, block_tokens: int = 16, seed: str = "") -> None:
        self._block_tokens = block_tokens
        self._seed = seed

    def names(self, tokens: Sequence[int], extra: Any = None) -> list[int]:
        """Of all whole blocks, as vLLM names them: 64 bits of a hash of all before their end."""
        size = self._block_tokens
        return [
            int.from_bytes(
                blake2b(
                    repr((self._seed, extra, list(tokens[: (index + 1) * size]))).encode(),
                    digest_size=8,
                ).digest()
            )
            for index in range(len(tokens) // size)
        ]

    def stored(self, tokens: Sequence[int], first: int = 0, **more: Any) -> dict[str, Any]:
        """From the block with this number on."""
        size, names = self._block_tokens, self.names(tokens)
        return {
            "type": "BlockStored",
            "block_hashes": names[first:],
            "parent_block_hash": names[first - 1] if first else None,
            "token_ids": list(tokens[first * size : len(names) * size]),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            **more,
        }

    def removed(self, tokens: Sequence[int], first: int = 0) -> dict[str, Any]:
        names = self.names(tokens)[first:]
        return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


def payload(*events: Any, at: float = 1.0) -> bytes:
    return msgspec.msgpack.encode([at, list(events), 0])


def batch(*events: Any) -> EventBatch:
    """As it arrives."""
    return read(payload(*events))
