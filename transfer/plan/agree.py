"""Agreement of two engines whose pages are to be exchanged, found once, by either side.

Served: other tp, other pipeline stages, other dp, HND against NHD, other block sizes if
one divides the other. Refused: whatever changes the meaning of the bytes.
"""

from typing import Final

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
