"""KV events, where the settings say that engines publish them."""

from typing import TYPE_CHECKING

from pdgate.gateway.config import Settings
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.wiring.prefixes import prefix_index_of
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.prefix.index import PrefixIndex

if TYPE_CHECKING:
    from pdgate.gateway.kv_events.watch import Watch


def watched_index_of(
    settings: Settings, instances: Instances, access: EngineAccess
) -> "tuple[PrefixIndex, Watch | None]":
    """The index, and what feeds it besides the calls themselves."""
    given = settings.kv_events
    if not given.endpoint:
        return prefix_index_of(settings), None
    # Only who asks for them needs ZeroMQ.
    from pdgate.gateway.kv_events.feeds import Where
    from pdgate.gateway.kv_events.watch import Watch

    watch = Watch(
        lambda source: prefix_index_of(settings, source),
        Where(given.endpoint, given.replay_endpoint, given.topic),
        instances,
        access,
        tokenize=given.tokenize,
    )
    return watch.index, watch
