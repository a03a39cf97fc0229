"""Who has what of a prompt cached: one count for each process, used if a policy asks for it."""

from pdgate.gateway.config import Settings
from pdgate.scheduling.prefix.blocks import BlocksOf, blocks_of
from pdgate.scheduling.prefix.index import PrefixIndex


def prefix_index_of(settings: Settings, source: BlocksOf = blocks_of) -> PrefixIndex:
    given = settings.prefix_index
    return PrefixIndex(source, max_bytes=given.max_bytes, kv_tokens=given.kv_tokens)
