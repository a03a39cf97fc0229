"""Builds the connector of a protocol."""

from collections.abc import Callable, Sequence

from pdgate.engine.connector import Connector, Core
from pdgate.engine.hand_over.decode_first import DecodeFirst
from pdgate.engine.hand_over.kvt import Kvt
from pdgate.engine.hand_over.mooncake import Mooncake
from pdgate.engine.hand_over.neuron import Neuron, peer_of
from pdgate.engine.hand_over.nixl import Nixl
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.sglang import Sglang
from pdgate.engine.layout import Layout
from pdgate.engine.roles import ROLE_DECIDES
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region

_PROTOCOLS: dict[str, Callable[..., Connector]] = {
    "decode-first": DecodeFirst,
    "neuron": Neuron,
    "sglang": Sglang,
    "vllm-kvt": Kvt,
    "vllm-mooncake": Mooncake,
    "vllm-nixl": Nixl,
}


def names() -> list[str]:
    return sorted(_PROTOCOLS)


def connect(
    protocol: str,
    *,
    core: Core,
    layout: Layout,
    regions: Sequence[Region],
    backend: Backend,
    settings: ConnectorSettings,
) -> Connector:
    """A connector whose KV side listens. Raises LookupError, ValueError, OSError."""
    if protocol not in _PROTOCOLS:
        raise LookupError(f"no protocol is called {protocol!r}; there are {', '.join(names())}")
    if protocol in ROLE_DECIDES and settings.role not in (Role.PREFILL, Role.DECODE):
        raise ValueError(f"with {protocol} an engine is prefill or decode, not {settings.role}")
    peer_of(settings)
    return _PROTOCOLS[protocol](
        core=core, layout=layout, regions=regions, backend=backend, settings=settings
    )
