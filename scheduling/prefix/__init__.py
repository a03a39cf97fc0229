"""Prefix cache index: what each instance has of a prompt in its KV cache, as far as is known here.

index    a call's prompt as hashes of its beginnings; which instance has which of them, how that becomes
         known, and how a leg's part is taken back
tree     prompts that begin alike share their beginning in it
"""

from pdgate.scheduling.prefix.index import BLOCK_TOKENS, BlocksOf, PrefixIndex, blocks_of

__all__ = ["BLOCK_TOKENS", "BlocksOf", "PrefixIndex", "blocks_of"]
