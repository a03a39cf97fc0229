"""Notifications: engines push here, over ZeroMQ, what calls wait for: that all KV is at decode, which is asked only then.

    PULL   a message that the `Callback` of a protocol reads

One socket, so one worker. Addresses are let in by network, before a byte is read; a message has MOST_BYTES (cluster/zmtp has the other
bounds).
"""

from collections.abc import Sequence
from typing import Final

from pdgate.cluster.networks import Allowed
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.gateway.callbacks.words import MessageResult, Read, Words
from pdgate.protocols.errors import BadRequest

MOST_BYTES: Final = 1 << 10


class Notifications:
    """
    Attributes:
        port: That it has.
    """

    def __init__(
        self,
        host: str,
        port: int,
        words: Words,
        allowed: Allowed,
        readers: Sequence[Read],
    ) -> None:
        """Binds at once. `readers`: of the protocols, the first that can read a message counts. Raises OSError."""
        self._words = words
        self._readers = readers
        self._listener = ZmtpListener(
            host,
            port,
            "PULL",
            allowed,
            MOST_BYTES,
            self._heard,
            lambda why: words.count(MessageResult(why.value)),
        )
        self.port = self._listener.port

    async def run(self) -> None:
        await self._listener.run()

    def close(self) -> None:
        self._listener.close()

    def _heard(self, _: ZmtpPeer, parts: list[bytes]) -> None:
        result = MessageResult.MALFORMED
        for read in self._readers:
            try:
                # A message in parts has an empty one before it where DEALER stands for REQ.
                key, word = read(parts[-1])
            except (BadRequest, ValueError):
                continue
            result = self._words.say(key, word)
            break
        self._words.count(result)
