"""Journal of the prefix cache: what became of its blocks since the last step, as vLLM's events.

Blocks that follow one another are one event. Names of blocks are the low 8 bytes of their hashes,
as numbers.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py; vllm/v1/core/block_pool.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
MEDIUM = "GPU"
"""What vLLM says of the memory that an engine computes in, on CPUs too."""


def name_of(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:])


class EventJournal:
    """
    Args:
        publish: Gets the events of a step, in order.
    """

    def __init__(self, block_tokens: int, publish: Callable[[Sequence[Event]], None]) -> None:
        self._block_tokens = block_tokens
        self._publish = publish
        self._events: list[dict[str, Any]] = []
        self._last: int | None = None

    def stored(
        self, before: bytes | None, block_hash: bytes, tokens: Sequence[int], salt: str = ""
    ) -> None:
        """A full block can be found from now on; `before` is the one that it follows.

        `salt` is a part of the first block's name, as in vLLM.
        """
        name = name_of(block_hash)
        parent = None if before is None else name_of(before)
        if parent is not None and parent == self._last:
            event = self._events[-1]
            event["block_hashes"].append(name)
            event["token_ids"].extend(tokens)
            if "extra_keys" in event:
                event["extra_keys"].append(None)
        else:
            self._events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": [name],
                    "parent_block_hash": parent,
                    "token_ids": list(tokens),
                    "block_size": self._block_tokens,
                    "lora_id": None,
                    "medium": MEDIUM,
                    "lora_name": None,
                }
            )
        if salt and before is None:
            self._events[-1]["extra_keys"] = [[salt]]
        self._last = name

    def removed(self, block_hash: bytes) -> None:
        """The block holds something else now."""
        name = name_of(block_hash)
        self._events.append({"type": "BlockRemoved", "block_hashes": [name], "medium": MEDIUM})
        self._last = None

    def flush(self) -> None:
        if self._events:
            events, self._events, self._last = self._events, [], None
            self._publish(events)
