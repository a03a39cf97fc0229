"""The engines that a file and flags of `pdgate serve` name, for commands that ask them directly."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx2

    from pdgate.protocols.instance import Instance


class KnownEngines(NamedTuple):
    """
    Attributes:
        client: Makes a client that shows itself to engines as the gateway does.
        lease_seconds: How long prefill keeps KV, if that was configured.
        kv_secrets: Of the fleet, for engines that publish KV events for its members alone.
    """

    instances: "Sequence[Instance]"
    client: "Callable[..., httpx2.AsyncClient]"
    lease_seconds: float | None
    kv_secrets: Sequence[str]


def engines(config: Path | None, flags: Mapping[str, Any]) -> KnownEngines:
    """Raises ValueError, with a sentence."""
    from pdgate.cluster import secret
    from pdgate.gateway.cli.flags import overrides
    from pdgate.gateway.config import ConfigError
    from pdgate.gateway.config.load import load
    from pdgate.gateway.config.security import engine_access

    try:
        settings = load(config, overrides(dict(flags)))
        access = engine_access(settings)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    file = settings.kv_events.secret_file
    secrets = secret.several(file) if file else ()
    return KnownEngines(settings.fleet, access.client, settings.kv_lease_seconds, secrets)
