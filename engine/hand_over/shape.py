"""The numbers that have to agree before one engine may read the other's pages."""

import msgspec

from pdgate.engine.layout import Layout


class Shape(msgspec.Struct, frozen=True):
    """A Layout and its model, as it travels; `blocks` may differ between peers."""

    model: str
    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    head_dim: int
    dtype: str
    item_bytes: int

    @classmethod
    def of(cls, layout: Layout, model: str) -> "Shape":
        return cls(
            model,
            layout.layers,
            layout.blocks,
            layout.kv_heads,
            layout.block_tokens,
            layout.head_dim,
            layout.dtype,
            layout.item_bytes,
        )

    @property
    def layout(self) -> Layout:
        return Layout(
            self.layers,
            self.blocks,
            self.kv_heads,
            self.block_tokens,
            self.head_dim,
            self.dtype,
            self.item_bytes,
        )


def differences(ours: Shape, theirs: Shape) -> str:
    """ "head_dim 64 here, 128 there"; empty if pages of one fit the other."""
    return "; ".join(
        f"{name} {getattr(ours, name)} here, {getattr(theirs, name)} there"
        for name in Shape.__struct_fields__
        if name != "blocks" and getattr(ours, name) != getattr(theirs, name)
    )
