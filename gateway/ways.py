"""Ways by instance: how calls cross from and to it; the forwarder of its protocol, and the mode."""

from collections.abc import Callable

from pdgate.forwarders import registry
from pdgate.forwarders.base import Callback, Forwarder, Mode
from pdgate.forwarders.route import Way
from pdgate.gateway.config import Settings
from pdgate.gateway.config.checks import mode_for
from pdgate.protocols.errors import NotServed
from pdgate.protocols.instance import Instance


def ways(settings: Settings, heard: frozenset[Callback]) -> Callable[[Instance], Way]:
    """`heard`: the callbacks that have had a port since the start of this gateway."""

    def way_of(instance: Instance) -> Way:
        """Raises NotServed."""
        mode = mode_for(settings, instance.protocol)
        forwarder = _forwarder(instance.protocol, mode, instance.generation)
        if forwarder.callback and forwarder.callback not in heard:
            # Without their word decode would read KV that is not there yet, and answer wrong.
            raise NotServed(
                f"engines of {instance.protocol} call the gateway back, which has had no port for that "
                "since its start; restart it with such an engine, or the protocol, in its configuration"
            )
        if forwarder.one_process and settings.listen.workers > 1:
            raise NotServed(
                f"engines of {instance.protocol} are joined by one gateway process, and this gateway has several"
            )
        return Way(forwarder, mode, settings.kv_lease_seconds)

    return way_of


def own_fields(settings: Settings) -> frozenset[str]:
    """Fields of the protocols that are configured; an engine that a directory brings has one of them."""
    found: set[str] = set()
    kinds = {(instance.protocol, instance.generation) for instance in settings.fleet}
    defaults = {settings.pdd_protocol, *(settings.protocol_of(m.name) for m in settings.models)}
    for protocol, generation in {*kinds, *((each, settings.generation(each)) for each in defaults)}:
        found |= _forwarder(protocol, mode_for(settings, protocol), generation).own_fields
    return frozenset(found)


def _forwarder(protocol: str, mode: Mode, generation: str) -> Forwarder:
    """Without a generation, that of a decode engine that is asked alone, as all of them are."""
    known = registry.generations(protocol)
    try:
        return registry.load(protocol, mode, generation)
    except LookupError:
        # A call that is split goes by its prefill engine's generation, which is always known.
        if generation or not known:
            raise
        return registry.load(protocol, mode, known[0])
