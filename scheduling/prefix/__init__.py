"""What each instance has of a prompt in its KV cache, as far as can be told from here.

blocks     a call's prompt as hashes of its beginnings
index      which instance has which of them
tree       as follows from where calls were sent
reported   as engines say
"""

from pdgate.scheduling.prefix.blocks import BLOCK_TOKENS, BlocksOf, blocks_of
from pdgate.scheduling.prefix.index import PrefixIndex

__all__ = ["BLOCK_TOKENS", "BlocksOf", "PrefixIndex", "blocks_of"]
