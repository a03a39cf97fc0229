"""D's connection to one P: a message, its answer, and the end of the connection.

Nothing listens, or the connection broke, is a peer that is gone; no answer, one that is silent. The event loop is
this connection's own, and runs while its thread waits for something.
"""

import asyncio
import secrets
import time
from typing import Final, Self

from pdgate.cluster import address
from pdgate.cluster.zmtp import dialled
from pdgate.cluster.zmtp.wire import EndedConnection, Wire
from pdgate.engine.neuron import messages
from pdgate.engine.neuron.messages import Message
from pdgate.engine.neuron.proof import Host
from pdgate.engine.neuron.wake import Wake
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.runtime.fleet import Identity, loopback
from pdgate.transfer.runtime.handshake import Unproven

TAIL: Final = "~"
"""Between an engine's address and a random part, in its ZMQ identity."""
MAX_ANSWER_BYTES: Final = 16 << 20


class Dealer:
    """DEALER socket to one peer, for one thread, but for `wake`.

    Attributes:
        gone: The peer has ended, or never was there: it writes nothing any more.
    """

    def __init__(
        self, identity: str, host: str, port: int, silence_seconds: float, ours: Identity
    ) -> None:
        """`identity` is ZMQ's, `ours` what we prove."""
        self._open_loopback_only = ours.is_open and not loopback(host)
        self._host = Host(ours)
        if not ours.is_open:
            # Who cannot guess it cannot take its place (ROUTER_HANDOVER at the other end).
            identity += TAIL + secrets.token_hex(16)
        self.name = address.joined(host, port)
        self.gone = False
        self.heard = time.monotonic()
        self.wake = Wake()
        self._silence_seconds = silence_seconds
        self._identity = identity.encode()
        self._loop = asyncio.new_event_loop()
        self._loop.add_reader(self.wake.fileno(), self._woken)
        self._news = asyncio.Event()
        self._woke = False
        self._wire: Wire | None = None
        self._next: asyncio.Task[list[bytes]] | None = None

    def connect(self) -> None:
        """Begin to connect, and ask which peer is there. Raise HandOverError."""
        if self._open_loopback_only:
            raise HandOverError(
                Why.UNPROVEN, f"{self.name} is not loopback, and we have no KV secret"
            )
        try:
            self._wire = self._loop.run_until_complete(self._dialled())
        except (OSError, EndedConnection):
            self._look()
        self._hear()
        # Of all words together: one that never answers may talk for ever.
        until = time.monotonic() + self._silence_seconds
        said = self.ask(self._host.handshake())
        while "timestamp" not in said:
            messages.raise_error(said)
            # Meant for an engine that had our identity before us.
            said = self._answer(until)
        try:
            proof = self._host.welcomed(said)
        except Unproven as error:
            raise HandOverError(Why.UNPROVEN, f"{self.name}: {error}") from None
        if proof is not None:
            messages.raise_error(self._asked(proof))

    @property
    def peer(self) -> str:
        """Name of P's process, as it was proven; empty where nothing is to be proven."""
        return self._host.name

    def ask(self, message: Message) -> Message:
        """Raises HandOverError: the peer is gone, silent, or says what is no message."""
        self._look()
        return self._asked(self._host.frames(message))

    def _asked(self, frames: list[bytes]) -> Message:
        if self._wire is not None:
            self._wire.send(frames)
        return self._answer(time.monotonic() + self._silence_seconds)

    def wait(self, until: float) -> None:
        """Wait until then, or until `wake`. Raise HandOverError if the peer goes meanwhile."""
        # Of a wake-up that came while an answer was waited for, the cause has not been looked at.
        if not self._woke:
            self._run(until)
        self._woke = False
        self._look()

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._wire is not None:
            self._wire.close()
        # What was cancelled ends.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        self.wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, until: float) -> Message:
        while True:
            self._look()
            if self._next is None or not self._next.done():
                if time.monotonic() >= until:
                    raise HandOverError(
                        Why.SILENT, f"{self.name} has not answered in {self._silence_seconds:g} s"
                    )
                # Woken for something else, it is looked at after the answer.
                self._run(until)
                continue
            frames = self._next.result()
            self._hear()
            self.heard = time.monotonic()
            try:
                return self._host.message(frames)
            except Unproven as error:
                raise HandOverError(Why.UNPROVEN, f"{self.name}: {error}") from None
            except (ValueError, RecursionError) as error:
                raise HandOverError(Why.BROKEN, f"{self.name} says {error}") from None

    async def _dialled(self) -> Wire:
        """Raises OSError, EndedConnection."""
        async with asyncio.timeout(self._silence_seconds):
            return await dialled.dial(
                f"tcp://{self.name}",
                dialled.DEALER,
                MAX_ANSWER_BYTES,
                _at_once,
                None,
                self._identity,
            )

    def _hear(self) -> None:
        """The next message."""
        if self._wire is not None:
            self._next = self._loop.create_task(self._wire.receive())
            self._next.add_done_callback(lambda _: self._news.set())

    def _run(self, until: float) -> None:
        """Until then, or until something has come, or `wake`."""

        async def wait() -> None:
            seconds = until - time.monotonic()
            try:
                async with asyncio.timeout(None if seconds == float("inf") else max(0.0, seconds)):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

        self._loop.run_until_complete(wait())

    def _woken(self) -> None:
        self.wake.clear()
        self._woke = True
        self._news.set()

    def _look(self) -> None:
        """Raises HandOverError if the connection is gone."""
        following = self._next
        if self._wire is None or (
            following is not None and following.done() and following.exception() is not None
        ):
            self.gone = True
            raise HandOverError(Why.BROKEN, f"nobody is at {self.name}, or not any more")


async def _at_once() -> None:
    """Nothing else is served by this loop."""
