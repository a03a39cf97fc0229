"""neuron: the request id says who the peer is, and its uid is where both meet.

    prefill   cmpl-<uid>_<decode ip>:<api port>, or cmpl-<uid>: keeps
    decode    cmpl-<uid>_<prefill ip>:<api port>, or cmpl-<uid> with a configured peer: loads

The KV side listens at the API port + 1, and a peer's is found the same way. The first
token that prefill sampled travels with the offer; decode samples it again from the last
prompt token, which it computes itself, so the two agree where sampling is greedy.

Source: AWS Neuron documentation, "Disaggregated Inference"; ids in
protocols/dialects/neuron.py.
"""

from urllib.parse import urlsplit

from pdgate.engine.connector import Arrival, Keep, Load
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects.neuron import SIGNAL_PORT_OFFSET, parse
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger.source import Source

_STATIC = "cmpl-"


class Neuron(TwoSided):
    def service_port(self) -> int:
        return self.settings.api_port + SIGNAL_PORT_OFFSET

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        named = parse(arrival.wire_id)
        if named is None and not arrival.wire_id.startswith(_STATIC):
            return None
        uid = arrival.wire_id if named is None else named.uid
        if self.settings.role == Role.PREFILL:
            return self._keep(arrival.id, uid)
        address = peer_of(self.settings) if named is None else (named.host, named.port)
        if address is None:
            return None
        host, api_port = address
        source = Source(
            host, api_port + SIGNAL_PORT_OFFSET, uid, wait_seconds=self.settings.lease_seconds
        )
        return self._load(source, len(arrival.prompt) - 1)


def peer_of(settings: ConnectorSettings) -> tuple[str, int] | None:
    """Raises ValueError if it is configured, but not as "host:port"."""
    if not settings.peer:
        return None
    parts = urlsplit(f"//{settings.peer}")
    if not parts.hostname or not parts.port:
        raise ValueError(f'peer must be "host:port", not {settings.peer!r}')
    return parts.hostname, parts.port
