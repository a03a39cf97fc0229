"""Callbacks of one worker, as settings and the protocols of the fleet ask for them."""

from collections.abc import Mapping, Sequence
from typing import Final

from pdgate.cluster.jobs import Run
from pdgate.cluster.networks import Allowed
from pdgate.forwarders import registry
from pdgate.forwarders.base import Callback, CallbackPort, Upstream
from pdgate.gateway.callbacks.metaserver import Metaserver
from pdgate.gateway.callbacks.notifications import Notifications
from pdgate.gateway.callbacks.upstream import CallbackUpstream
from pdgate.gateway.callbacks.words import Read, Words
from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.instances import host_and_port

NOTIFICATIONS_PORT: Final = 7500
"""Of LMCache's examples."""
_WILDCARDS: Final = ("", "0.0.0.0", "::")


class CallbackPorts:
    """
    Attributes:
        words: What attempts wait for, and counts.
        heard: How engines can call back.
        metaserver, notifications: Bound from the start; None where no protocol needs one.
    """

    def __init__(self, settings: Settings, wanted: frozenset[Callback]) -> None:
        """Raises ConfigError."""
        self.heard = wanted
        self.words = Words()
        self._seconds = settings.timeouts.prefill_seconds
        section = settings.callbacks
        allowed = Allowed.of(section.allow)
        self.metaserver: Metaserver | None = None
        posts = {one.path: one.read for one in wanted if one.port is CallbackPort.METASERVER}
        if posts:
            host, port = _where(section.metaserver, settings, "metaserver")
            try:
                self.metaserver = Metaserver(host, port, self.words, allowed, posts)
            except OSError as error:
                raise ConfigError(f"'callbacks.metaserver': {host}:{port}: {error}") from None

        pushes = [one.read for one in wanted if one.port is CallbackPort.NOTIFICATIONS]
        self.notifications = self._hears(settings, allowed, pushes) if pushes else None

    def _hears(
        self, settings: Settings, allowed: Allowed, readers: Sequence[Read]
    ) -> Notifications:
        """Raises ConfigError."""
        if settings.listen.workers > 1:
            raise ConfigError(
                "'workers': prefill engines notify one socket, so a gateway of this protocol is one process; "
                "run several gateways, each for engines of its own"
            )
        named = settings.callbacks.notifications
        host, port = host_and_port(named) if named else (settings.listen.host, NOTIFICATIONS_PORT)
        try:
            return Notifications(host, port, self.words, allowed, readers)
        except OSError as error:
            raise ConfigError(f"'callbacks.notifications': {host}:{port}: {error}") from None

    @classmethod
    def of(cls, settings: Settings) -> "CallbackPorts | None":
        """Return the ports; None where no engine of these protocols calls back. Raise ConfigError."""
        protocols = {one.protocol for one in settings.fleet}
        # What a directory announces may be of these.
        protocols |= {
            settings.pdd_protocol,
            *(settings.protocol_of(m.name) for m in settings.models),
        }
        wanted = frozenset[Callback]().union(*map(registry.callbacks, protocols - {""}))
        return cls(settings, wanted) if wanted else None

    def around(self, upstream: Upstream) -> Upstream:
        url = "" if self.metaserver is None else self.metaserver.url
        return CallbackUpstream(upstream, self.words, url, self._seconds)

    @property
    def jobs(self) -> Mapping[str, Run]:
        found: dict[str, Run] = {}
        if self.metaserver is not None:
            found["metaserver"] = self.metaserver.run
        if self.notifications is not None:
            found["kv-notifications"] = self.notifications.run
        return found

    def close(self) -> None:
        if self.metaserver is not None:
            self.metaserver.close()
        if self.notifications is not None:
            self.notifications.close()


def _where(named: str, settings: Settings, key: str) -> tuple[str, int]:
    """An address that engines can be told. Raises ConfigError."""
    host, port = host_and_port(named) if named else (settings.listen.host, 0)
    if host in _WILDCARDS:
        raise ConfigError(
            f"'callbacks.{key}': engines are told where to call back, and {host!r} is no such place; "
            f"name a host and a port (--{key})"
        )
    if port and settings.listen.workers > 1:
        raise ConfigError(
            f"'callbacks.{key}': each worker needs a port of its own, so it cannot be {port} with "
            f"{settings.listen.workers} workers; 0 takes free ones"
        )
    return host, port
