"""The owner's side of visits: regions by epoch, and a thread for each visitor."""

import logging

from pdgate.transfer.external_mover import wire
from pdgate.transfer.external_mover.library import Library
from pdgate.transfer.external_mover.regions import VisitedRegion, leave_by
from pdgate.transfer.external_mover.wire import BadMoverRequest
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import Listener

STALL_SECONDS = 30.0

log = logging.getLogger(__name__)


class MoverOwner:
    def __init__(
        self, name: str, host: str, port: int, identity: Identity, library: Library
    ) -> None:
        """Raises OSError, ValueError."""
        sock = fleet.listening(f"the {name} transfer", host, port, identity)
        self.port: int = sock.getsockname()[1]
        self._library = library
        self._regions: dict[bytes, VisitedRegion] = {}
        door = Door(name, identity, {name: self._serve})
        self._listener = Listener(f"pdgate-{name}", sock, door)

    def add(self, region: VisitedRegion) -> None:
        self._regions[bytes.fromhex(region.descriptor.epoch)] = region

    def forget(self, region: VisitedRegion) -> None:
        self._regions.pop(bytes.fromhex(region.descriptor.epoch), None)

    def close(self) -> bool:
        """False if a peer may still be moving bytes in a region."""
        regions = [region for region in list(self._regions.values()) if region.shut()]
        until = leave_by()
        for region in regions:
            region.vacate(until)
        self._listener.close()
        return not any(region.stranded for region in regions)

    def _serve(self, channel: Channel) -> None:
        # To bytes that are not ours there is no answer: the connection just ends.
        try:
            while request := wire.receive_request(channel, STALL_SECONDS):
                if request.word is not wire.MoverWord.ENTER:
                    raise BadMoverRequest
                self._host(channel, request)
        except BadMoverRequest:
            log.warning("a peer speaks something else; hanging up")

    def _host(self, channel: Channel, request: wire.MoverRequest) -> None:
        region = self._regions.get(request.epoch)
        if region is None:
            wire.send_answer(channel, wire.MoverAnswer(wire.MoverStatus.STALE))
            return
        with region.visit() as usable:
            if not usable:
                wire.send_answer(channel, wire.MoverAnswer(wire.MoverStatus.STALE))
                return
            ticket = wire.new_ticket()
            leaving = self._visit(channel, region, ticket)
            if leaving is None:
                return
            status = self._farewell(region, ticket, leaving.immediate)
        wire.send_answer(channel, wire.MoverAnswer(status))

    def _visit(
        self, channel: Channel, region: VisitedRegion, ticket: bytes
    ) -> wire.MoverRequest | None:
        """What the visitor says in the end; None if it hung up."""
        clean = False
        try:
            size, card = region.descriptor.length, self._library.card()
            wire.send_answer(
                channel, wire.MoverAnswer(wire.MoverStatus.OK, ticket, region.base, size, card)
            )
            leaving = wire.receive_request(channel, STALL_SECONDS)
            if leaving is not None and leaving.word is wire.MoverWord.ENTER:
                raise BadMoverRequest
            clean = leaving is not None and leaving.word is wire.MoverWord.LEAVE
            return leaving
        finally:
            if not clean:
                region.spoil()

    def _farewell(
        self, region: VisitedRegion, ticket: bytes, immediate: int | None
    ) -> wire.MoverStatus:
        if region.closed:
            # The bytes are there, but they may be of the memory's next life.
            return wire.MoverStatus.STALE
        if immediate is not None:
            if not self._library.landed(ticket):
                region.spoil()
                return wire.MoverStatus.MISSING
            # Counted before the answer, so a writer that saw the end may rely on the count.
            region.arrivals.count(immediate)
        return wire.MoverStatus.OK
