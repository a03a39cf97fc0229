"""The former place of `pdgate.transfer.base.Op`, which backends of others may import from here."""

from pdgate.transfer.base import Op

__all__ = ["Op"]
