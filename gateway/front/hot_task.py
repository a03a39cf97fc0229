"""Task of one hot call, in the place of `task_root`, which would be one coroutine more.

Interpreted for the same reason (forwarders/beside.py).
"""

import asyncio
from typing import Protocol

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Client, Service


class Cycle(Client, Protocol):
    """What asked for the call.

    Attributes:
        disconnected: The client has left.
    """

    disconnected: bool

    def abort(self) -> None:
        """Hangs up."""

    def task_ended(self) -> None:
        """Whatever ended it."""


async def hot_task(
    cycle: Cycle,
    service: Service,
    path: str,
    headers: RequestHeaders,
    body: bytes,
    key_state: KeyState | None,
) -> None:
    try:
        await service.handle(path, headers, body, cycle, key_state)
    except asyncio.CancelledError:
        # The client left, or the server gave up waiting for us at shutdown.
        if not cycle.disconnected:
            cycle.abort()
            raise
    except BaseException:
        # A bug of ours must not leave the client waiting.
        cycle.abort()
        raise
    finally:
        cycle.task_ended()
