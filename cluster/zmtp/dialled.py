"""A connection that we make, to a publisher or to who answers: as SUB and DEALER sockets of ZeroMQ make it, without their queues.

What is not received waits in the kernel, and at the other end: a publisher drops what its listeners do not take.
"""

import asyncio
import socket
from typing import Final
from urllib.parse import urlsplit

from pdgate.cluster.kv_events.curve import Listening
from pdgate.cluster.zmtp import wire
from pdgate.cluster.zmtp.wire import NULL, EndedConnection, RefusalReason, Turn, Wire

SUB: Final = "SUB"
DEALER: Final = "DEALER"
_SUBSCRIBE: Final = b"\1"


async def dial(
    endpoint: str,
    kind: str,
    most_bytes: int,
    turn: Turn,
    proven: Listening | None,
    identity: bytes = b"",
) -> Wire:
    """A connection over which all has been said that comes before messages.

    `most_bytes`: of a message. `proven`: what it takes to be let in; `identity`: of the socket, where it takes nothing. Raises EndedConnection where something else answers, OSError.
    """
    at = urlsplit(endpoint)
    async with asyncio.timeout(wire.HANDSHAKE_SECONDS):
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made = Wire(reader, writer, most_bytes, turn)
        try:
            if proven is None:
                await made.greet(NULL)
                await made.ready(kind, identity)
            else:
                # It needs a package that nothing else of this needs.
                from pdgate.cluster.zmtp.curve import MECHANISM, let_in

                await made.greet(MECHANISM)
                await let_in(made, kind, proven)
        except EOFError:
            made.close()
            raise EndedConnection(RefusalReason.MALFORMED) from None
        except BaseException:
            made.close()
            raise
    return made


def subscribe(made: Wire, topic: str) -> None:
    # As ZMTP 3.0 has it, which is what we speak: a message, not a command.
    made.send([_SUBSCRIBE + topic.encode()])
