"""Journal of the prefix cache: what became of its blocks since the last step, as vLLM's events.

Blocks that follow one another are one event. Names of blocks are the low 8 bytes of their hashes,
as numbers.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py; vllm/v1/core/block_pool.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
MEDIUM = "GPU"
"""What vLLM says of the memory that an engine computes in, on CPUs too."""
TIERS = {"host": "CPU", "disk": "DISK"}
"""Of the tiers beyond it. vLLM says CPU of what its OffloadingConnector has in the host's memory."""


@dataclass(frozen=True, slots=True)
class TierNews:
    """
    Attributes:
        medium: As the tier calls it.
        before, block_hash, tokens, salt: As of `EventJournal.stored`.
        stored: The tier has it from now on; else it has it no more.
    """

    medium: str
    before: bytes | None
    block_hash: bytes
    tokens: Sequence[int]
    salt: str
    stored: bool = True


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
        self._last: tuple[str, int] | None = None

    def stored(
        self,
        before: bytes | None,
        block_hash: bytes,
        tokens: Sequence[int],
        salt: str = "",
        medium: str = MEDIUM,
    ) -> None:
        """A full block can be found from now on; `before` is the one that it follows.

        `salt` is a part of the first block's name, as in vLLM.
        """
        name = name_of(block_hash)
        parent = None if before is None else name_of(before)
        if parent is not None and (medium, parent) == self._last:
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
                    "medium": medium,
                    "lora_name": None,
                }
            )
        if salt and before is None:
            self._events[-1]["extra_keys"] = [[salt]]
        self._last = (medium, name)

    def beyond(self, news: TierNews) -> None:
        """What became of a block in a tier."""
        medium = TIERS[news.medium]
        if news.stored:
            self.stored(news.before, news.block_hash, news.tokens, news.salt, medium)
        else:
            self.removed(news.block_hash, medium)

    def removed(self, block_hash: bytes, medium: str = MEDIUM) -> None:
        """The block holds something else now."""
        name = name_of(block_hash)
        self._events.append({"type": "BlockRemoved", "block_hashes": [name], "medium": medium})
        self._last = None

    def flush(self) -> None:
        if self._events:
            events, self._events, self._last = self._events, [], None
            self._publish(events)
