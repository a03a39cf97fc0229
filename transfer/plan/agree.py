"""May two engines exchange pages? Asked once, at the hand-shake, by either side.

Served: other tp, other pipeline stages, other dp, HND against NHD, other block sizes if
one divides the other. Refused: whatever changes the meaning of the bytes.
"""

from typing import Any, Final

import msgspec

from pdgate.transfer.base import TransferError
from pdgate.transfer.plan.layout import KvLayout

SAME: Final = ("model", "layers", "kv_heads", "head_dim", "planes", "dtype", "item_bytes")


class LayoutMismatch(TransferError):
    """Pages of the one engine can never be pages of the other. Trying again is no use."""


def agree(source: KvLayout, destination: KvLayout) -> None:
    """Raises LayoutMismatch, naming every number that is in the way, of both sides."""
    wrong = [
        f"{name} {getattr(source, name)} at the source, "
        f"{getattr(destination, name)} at the destination"
        for name in SAME
        if getattr(source, name) != getattr(destination, name)
    ]
    small, large = sorted((source.block_tokens, destination.block_tokens))
    if large % small:
        wrong.append(
            f"block_tokens {source.block_tokens} at the source, {destination.block_tokens} "
            "at the destination, and neither divides the other"
        )
    if wrong:
        raise LayoutMismatch("; ".join(wrong))


def as_data(layout: KvLayout) -> dict[str, Any]:
    """What JSON and msgpack can carry."""
    data: dict[str, Any] = msgspec.to_builtins(layout)
    return data


def peer_layout(ours: KvLayout, data: object) -> KvLayout:
    """The layout that a peer sent. Raises LayoutMismatch for nonsense."""
    try:
        return msgspec.convert(data, KvLayout)
    # Also what KvLayout itself refuses: msgspec wraps its ValueError.
    except msgspec.ValidationError as error:
        raise LayoutMismatch(
            f"the peer's KV layout is none: {error}; ours is {as_data(ours)}"
        ) from None
