"""Who has what of a prompt cached: one count for each process, used if a policy asks for it."""

from pdgate.gateway.config import Settings
from pdgate.gateway.neighbours import SharedLoad, SharedPrefixes
from pdgate.gateway.policies import Policies
from pdgate.scheduling.policy import load
from pdgate.scheduling.prefix.blocks import BlocksOf, blocks_of
from pdgate.scheduling.prefix.index import PrefixIndex


def prefix_index_of(settings: Settings, source: BlocksOf = blocks_of) -> PrefixIndex:
    given = settings.prefix_index
    return PrefixIndex(source, max_bytes=given.max_bytes, kv_tokens=given.kv_tokens)


def policies_of(
    index: PrefixIndex, neighbours: SharedLoad | None, prompts: SharedPrefixes | None
) -> Policies:
    """`neighbours` and `prompts`: what other workers have in flight, and have sent where."""
    if neighbours is None or prompts is None:
        return Policies(load, index)
    return Policies(prompts.around(neighbours.policy), index)
