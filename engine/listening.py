"""The socket of an engine's HTTP API."""

import errno
import socket

from pdgate.engine.settings import Settings
from pdgate.protocols.dialects.neuron import SIGNAL_PORT_OFFSET


def listen(settings: Settings) -> socket.socket:
    """Raises OSError.

    Neuron's KV side has no port of its own: peers look for it beside the API's. So where the
    port is ours to choose, it is one whose neighbour is free.
    """
    while True:
        listening = _bind(settings.host, settings.port)
        beside = listening.getsockname()[1] + SIGNAL_PORT_OFFSET
        if settings.port or settings.protocol != "neuron" or _is_free(settings.kv_host, beside):
            return listening
        listening.close()


def _is_free(host: str, port: int) -> bool:
    try:
        _bind(host, port).close()
    except OverflowError:
        return False
    except OSError as error:
        # Whatever else is wrong would be wrong with any port; who needs it will say so.
        return error.errno != errno.EADDRINUSE
    return True


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
