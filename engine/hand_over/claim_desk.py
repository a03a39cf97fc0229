"""The decode engine's port: a thread per worker that serves one of its requests.

Prefill engines reach decode here as well, for KV that is lent to them: a claim begins with a
brace, what the messenger says with a length, whose first byte is less than that.
"""

import logging
import socket
from collections.abc import Callable

from pdgate.engine.hand_over.tickets import Tickets
from pdgate.engine.prefill_worker.wire import Answer, BadLine, Claim, Lines, Word
from pdgate.transfer.kit.listener import Listener

SPEAK_SECONDS = 5.0
"""For a worker that has connected to say what it wants."""
ALIVE_SECONDS = 2.0
"""How often a worker hears that it is still wanted."""

CLAIM_STARTS = b"{"

log = logging.getLogger(__name__)

Serve = Callable[[socket.socket], None]


class ClaimDesk:
    def __init__(self, host: str, port: int, tickets: Tickets, kv: Serve) -> None:
        """Listens from now on. `kv` gets who claims nothing. Raises OSError for a taken address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = sock.getsockname()[1]
        self._tickets = tickets
        self._kv = kv
        self._listener = Listener("pdgate-claims", sock, self._serve)

    def close(self) -> None:
        """After `Tickets.close_all`, which ends whoever waits here."""
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        """Raises OSError."""
        sock.settimeout(SPEAK_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.recv(1, socket.MSG_PEEK) != CLAIM_STARTS:
            self._kv(sock)
            return
        lines = Lines(sock)
        try:
            claim = lines.hear(Claim)
        except BadLine as error:
            log.warning("a peer on the port for claims spoke something else: %s", error)
            return
        found = self._tickets.claim(claim)
        if isinstance(found, Word):
            lines.say(Answer(found))
            return
        lines.say(Answer(Word.YOURS))
        # If the worker is gone, this ends here and nothing else does: whether it lives does not
        # matter for what its engine was asked to do.
        while not found.ended.wait(ALIVE_SECONDS):
            lines.say(Answer(Word.YOURS))
        lines.say(Answer(found.word))
