"""Connectors by the name of their protocol, ours and third-party ones alike.

A package adds one with an entry point, and nothing is imported until it is used:

    [project.entry-points."pdgate.connectors"]
    acme = "pdgate_acme:AcmeConnector"
"""

from collections.abc import Sequence

from pdgate.engine.connector import Connector, Core
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.protocols import plugins
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.memory import HOST


def load(protocol: str) -> type[Connector]:
    """The connector class of a protocol.

    Raises LookupError for an unknown name, TypeError for an entry point that is no Connector.
    """
    declared = plugins.find(plugins.CONNECTORS, "protocol", protocol)
    found = declared.load()
    if isinstance(found, type) and issubclass(found, Connector):
        return found
    raise TypeError(f"{declared.value} is not a Connector class")


def checked(protocol: str, settings: ConnectorSettings) -> type[Connector]:
    """The class, whose connectors take these settings. Raises LookupError, TypeError, ValueError."""
    made_for = load(protocol)
    if made_for.fixed_role and settings.role not in (Role.PREFILL, Role.DECODE):
        raise ValueError(f"with {protocol} an engine is prefill or decode, not {settings.role}")
    made_for.check(settings)
    return made_for


def connect(
    protocol: str,
    *,
    core: Core,
    layout: Layout,
    regions: Sequence[Region],
    backend: Backend,
    settings: ConnectorSettings,
) -> Connector:
    """A connector whose KV side listens. Raises LookupError, TypeError, ValueError, OSError."""
    made_for = checked(protocol, settings)
    places = {region.place for region in regions}
    if not made_for.takes_devices and places - {HOST}:
        raise ValueError(
            f"{protocol} hands over memory of the host only, not of {', '.join(sorted(places))}"
        )
    return made_for(core=core, layout=layout, regions=regions, backend=backend, settings=settings)
