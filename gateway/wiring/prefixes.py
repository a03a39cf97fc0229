"""Who has what of a prompt cached: one count for each process, used if a policy asks for it."""

from typing import TYPE_CHECKING

from pdgate.gateway.config import Settings
from pdgate.gateway.neighbours import SharedLoad, SharedPrefixes
from pdgate.gateway.policies import Load, Policies
from pdgate.scheduling.policy import load
from pdgate.scheduling.prefix.blocks import BlocksOf, blocks_of
from pdgate.scheduling.prefix.index import PrefixIndex

if TYPE_CHECKING:
    from pdgate.gateway.replicas.far_prompts import FarPrompts


def prefix_index_of(settings: Settings, source: BlocksOf = blocks_of) -> PrefixIndex:
    given = settings.prefix_index
    return PrefixIndex(source, max_bytes=given.max_bytes, kv_tokens=given.kv_tokens)


def policies_of(
    index: PrefixIndex,
    neighbours: SharedLoad | None,
    prompts: SharedPrefixes | None,
    far: "FarPrompts | None" = None,
) -> Policies:
    """`neighbours` and `prompts`: what other workers have in flight, and have sent where; `far`: what other
    replicas have."""
    find: Load = load
    if neighbours is not None and prompts is not None:
        find = prompts.around(neighbours.policy)
    if far is not None:
        find = far.around(find)
    return Policies(find, index)
