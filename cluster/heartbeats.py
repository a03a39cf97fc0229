"""A directory made of heartbeats: each engine says again and again, over ZeroMQ, that it is there, and where.

    ROUTER   a message that the protocol's `entry` reads

One that is silent for FORGET_SECONDS is gone. Connections are let in by network, messages have MOST_BYTES (zmtp/ has the other bounds),
and what is no heartbeat is refused with its reason. One socket: a gateway with such a directory has one worker.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from pdgate.cluster import address
from pdgate.cluster.directory import MOST_ENTRIES, Tell
from pdgate.cluster.member import FOLDER
from pdgate.cluster.networks import Allowed
from pdgate.cluster.polled import Polled, Seen, Unseen
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.cluster.zmtp.wire import RefusalReason
from pdgate.protocols.instance import Role

EVERY_SECONDS: Final = 1.0
FORGET_SECONDS: Final = 10.0
"""Three heartbeats of MoRI-IO's engines, and some more."""
MOST_BYTES: Final = 4 << 10
STRANGERS: Final = "heartbeats of strangers"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    Attributes:
        api: host:port of the engine's API.
        entry: What stands of it in other directories.
    """

    role: Role
    api: str
    entry: Mapping[str, Any]


class HeartbeatDirectory(Polled):
    one_process: ClassVar = True

    def __init__(self, listen: str, allow: str, clock: Callable[[], float]) -> None:
        """`listen`: host:port; `allow`: networks between commas. Raises ValueError."""
        super().__init__(EVERY_SECONDS)
        self._clock = clock
        self._allowed = Allowed.of(allow)
        self._heard: dict[str, tuple[float, bytes]] = {}
        self._strangers = 0
        self._bad = ""
        self._at = address.split(listen)
        self._listening: tuple[ZmtpListener, asyncio.Task[None]] | None = None

    @abstractmethod
    def read(self, message: bytes) -> Heartbeat:
        """Raises DecodeError, ValueError."""

    async def follow(self, tell: Tell) -> None:
        try:
            await super().follow(tell)
        finally:
            self.close()

    def close(self) -> None:
        """Hears no more; the next look listens again."""
        if self._listening is not None:
            listener, running = self._listening
            self._listening = None
            running.cancel()
            listener.close()

    async def look(self) -> Seen:
        if self._listening is None:
            self._listen()
        elif (running := self._listening[1]).done():
            self.close()
            raise Unseen(f"heartbeats were heard no more: {running.exception()!r}")
        now = self._clock()
        self._heard = {
            key: found for key, found in self._heard.items() if now - found[0] < FORGET_SECONDS
        }
        refused = {}
        if self._strangers:
            refused[STRANGERS] = f"{self._strangers} connections of addresses that are not allowed"
        if self._bad:
            refused["a heartbeat"] = self._bad
        return Seen({key: value for key, (_, value) in self._heard.items()}, refused)

    def _listen(self) -> None:
        """Raises Unseen."""
        host, port = self._at
        try:
            listener = ZmtpListener(
                host, port, "ROUTER", self._allowed, MOST_BYTES, self._beat, self._refused
            )
        except OSError as error:
            raise Unseen(f"no heartbeats can be heard at {host}:{port}: {error}") from None
        running = asyncio.get_running_loop().create_task(listener.run(), name="heartbeats")
        self._listening = listener, running

    def _refused(self, why: RefusalReason) -> None:
        if why is RefusalReason.STRANGER:
            self._strangers += 1
        else:
            self._bad = f"a connection was ended: {why}"

    def _beat(self, _: ZmtpPeer, parts: list[bytes]) -> None:
        try:
            beat = self.read(parts[-1])
            host, port = address.split(beat.api)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._bad = f"{error}"[:200]
            return
        key = f"{FOLDER}{beat.role}/{host}/{port}"
        if key in self._heard or len(self._heard) < MOST_ENTRIES:
            self._heard[key] = self._clock(), json.dumps(beat.entry).encode()
