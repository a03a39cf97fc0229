"""The decode engine's port: a thread per worker that serves one of its requests.

Prefill engines reach decode here as well, for KV that is lent to them: what a connection is for
is said, and proven, in its handshake.
"""

import logging

from pdgate.engine.hand_over.tickets import Tickets
from pdgate.engine.prefill_worker.wire import (
    PURPOSE,
    BadLine,
    Claim,
    ClaimWord,
    Lines,
    WorkerAnswer,
)
from pdgate.transfer.messenger import messages, service
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door, Serve
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import Listener

SPEAK_SECONDS = 5.0
"""For a worker that has proven itself to say what it wants."""
ALIVE_SECONDS = 2.0
"""How often a worker hears that it is still wanted."""

log = logging.getLogger(__name__)


class ClaimDesk:
    def __init__(
        self, host: str, port: int, tickets: Tickets, kv: Serve, identity: Identity
    ) -> None:
        """Listens from now on. `kv` gets who comes for KV. Raises OSError for a taken address,
        ValueError if listening there takes a secret.
        """
        sock = fleet.listening("the claim desk", host, port, identity)
        self.port: int = sock.getsockname()[1]
        self._tickets = tickets
        rooms = {PURPOSE: self._serve, messages.PURPOSE: kv}
        door = Door("claims", identity, rooms, service.older)
        self._listener = Listener("pdgate-claims", sock, door)

    def close(self) -> None:
        """Close after `Tickets.close_all`, which ends the waits here."""
        self._listener.close()

    def _serve(self, channel: Channel) -> None:
        """Raises OSError."""
        channel.sock.settimeout(SPEAK_SECONDS)
        lines = Lines(channel)
        try:
            claim = lines.hear(Claim)
        except BadLine as error:
            log.warning("a peer on the port for claims spoke something else: %s", error)
            return
        found = self._tickets.claim(claim)
        if isinstance(found, ClaimWord):
            lines.say(WorkerAnswer(found))
            return
        lines.say(WorkerAnswer(ClaimWord.YOURS))
        # If the worker is gone, this ends here and nothing else does: whether it lives does not
        # matter for what its engine was asked to do.
        while not found.ended.wait(ALIVE_SECONDS):
            lines.say(WorkerAnswer(ClaimWord.YOURS))
        lines.say(WorkerAnswer(found.word))
