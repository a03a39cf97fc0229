"""Service of an engine's KV tiers to engines of other hosts: blocks by name, to members of the fleet alone.

A thread for each connection that has proven itself (transfer/runtime/channel.py). What a peer may read is the slots that it
was offered, until it has released them, hangs up, or takes longer than it said; where hardware or the kernel moves the
bytes it can reach the whole window, and what was changed meanwhile does not fit its digest (tier_window.py).
"""

import logging
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.engine.cache import tier_window as window
from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Grant, Op
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.line import MessengerLine
from pdgate.transfer.messenger.service import older
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import Unproven
from pdgate.transfer.runtime.listener import Listener

WINDOW_BYTES: Final = 32 << 20
SHARES: Final = 4
"""Such a part of the window is offered at once, so that one peer leaves room for others."""
MOST_SECONDS: Final = 30.0
"""That a peer may wait, or read."""
MARGIN_SECONDS: Final = 1.0

log = logging.getLogger(__name__)

Lend = Callable[[str], memoryview | None]
"""A block of this name from a tier; any thread may ask."""


class WindowSlots:
    """Free slots of the window."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._free = list(range(count))

    def take(self, most: int, seconds: float) -> list[int]:
        """At least one, as soon as there is one; none if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._free, seconds)
            taken, self._free = self._free[:most], self._free[most:]
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        with self._changed:
            self._free += slots
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _Offered:
    slots: Sequence[int]
    grant: Grant


class TierService:
    """
    Attributes:
        port: As bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        lend: Lend,
        block_bytes: int,
        backend: Backend,
        identity: Identity,
    ) -> None:
        """Listens from now on. Raises OSError; ValueError if listening there takes a secret."""
        count = max(1, WINDOW_BYTES // block_bytes)
        self.lend = lend
        self.most = max(1, count // SHARES)
        self.shape = window.shape(block_bytes, count)
        self.slots = WindowSlots(count)
        sock = fleet.listening("the KV tiers", host, port, identity)
        try:
            self.region = backend.allocate(count * block_bytes)
        except BaseException:
            sock.close()
            raise
        self.port: int = sock.getsockname()[1]
        door = Door("kv-tiers", identity, {window.PURPOSE: self._serve}, older)
        self._listener = Listener("pdgate-kv-tiers", sock, door)

    def close(self) -> None:
        self._listener.close()
        self.region.close()

    def _serve(self, channel: Channel) -> None:
        """Raises OSError."""
        _TierReader(MessengerLine(channel), self).run()


class _TierReader:
    """One connection."""

    def __init__(self, line: MessengerLine, service: TierService) -> None:
        self._line = line
        self._service = service
        self._offered: dict[str, _Offered] = {}
        self._silence: float | None = None

    def run(self) -> None:
        try:
            while (message := self._line.receive(self._silence)) is not None:
                self._line.answer(self._answer(message))
        except (messages.BadMessage, TimeoutError, Unproven) as error:
            log.warning("a peer at the KV tiers: %s", error or "it says nothing any more")
        finally:
            for offer_id in list(self._offered):
                self._release(offer_id)

    def _answer(self, message: messages.Message) -> messages.Message:
        """Raises BadMessage."""
        match message:
            case messages.Ask():
                try:
                    return self._offer(message)
                except HandOverError as error:
                    return messages.RefusedMessage(error.why, error.message)
            case messages.Release():
                return messages.Released(self._release(message.offer_id))
            case _:
                raise messages.BadMessage(f"{type(message).__name__} means nothing here")

    def _offer(self, ask: messages.Ask) -> messages.Offered:
        """Raises HandOverError, BadMessage."""
        service = self._service
        window.check(service.shape, ask.shape)
        if not (math.isfinite(ask.wait_seconds) and math.isfinite(ask.read_seconds)):
            raise messages.BadMessage("a wait without end")
        try:
            names = window.names_of(ask.key)
        except ValueError as error:
            raise messages.BadMessage(str(error)) from None
        slots = service.slots.take(min(len(names), service.most), _within(ask.wait_seconds))
        if not slots:
            raise HandOverError(Why.FULL, "others read from all of the window")
        used: list[int] = []
        try:
            digests = self._filled(names, slots, used)
            if not used:
                raise HandOverError(Why.UNKNOWN, "no tier has it")
            seconds = _within(ask.read_seconds)
            grant = service.region.grant(
                self._line.peer, Op.READ, service.shape.part(used), seconds
            )
        except BaseException:
            service.slots.give_back(slots)
            raise
        service.slots.give_back(slots[len(used) :])
        offer_id = secrets.token_hex(16)
        self._offered[offer_id] = _Offered(used, grant)
        self._silence = seconds + MARGIN_SECONDS
        described = [descriptors.as_data(grant.descriptor)]
        return messages.Offered(offer_id, described, service.shape, used, len(used), None, digests)

    def _filled(self, names: Sequence[str], slots: Sequence[int], used: list[int]) -> bytes:
        """The digests of what lies in the `used` slots: the blocks up to the first that no tier has."""
        size, digests = self._service.shape.page_bytes, b""
        for name, slot in zip(names, slots, strict=False):
            pages = self._service.lend(name)
            if pages is None:
                break
            self._service.region.memory[slot * size : (slot + 1) * size] = pages
            digests += window.digest(pages)
            used.append(slot)
        return digests

    def _release(self, offer_id: str) -> bool:
        offered = self._offered.pop(offer_id, None)
        if offered is None:
            return False
        offered.grant.revoke()
        self._service.slots.give_back(offered.slots)
        if not self._offered:
            self._silence = None
        return True


def _within(seconds: float) -> float:
    return min(max(seconds, 0.0), MOST_SECONDS)
