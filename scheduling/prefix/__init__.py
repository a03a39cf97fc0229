"""What each instance has of a prompt in its KV cache, as far as can be told from here.

blocks   a call's prompt as hashes of its beginnings
index    which instance has which of them, and how that becomes known
tree     prompts that begin alike share their beginning in it
lesson   what the index is told of a leg, and has to take back if that comes to nothing
"""

from pdgate.scheduling.prefix.blocks import BLOCK_TOKENS, BlocksOf, blocks_of
from pdgate.scheduling.prefix.index import PrefixIndex

__all__ = ["BLOCK_TOKENS", "BlocksOf", "PrefixIndex", "blocks_of"]
