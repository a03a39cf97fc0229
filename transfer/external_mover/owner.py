"""The owner's side of visits: regions by epoch, and a thread for each visitor."""

import logging

from pdgate.transfer.external_mover import wire
from pdgate.transfer.external_mover.library import Library
from pdgate.transfer.external_mover.regions import VisitedRegion, leave_by
from pdgate.transfer.external_mover.wire import BadRequest
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import Listener

STALL_SECONDS = 30.0

log = logging.getLogger(__name__)


class Owner:
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
                if request.word is not wire.Word.ENTER:
                    raise BadRequest
                self._host(channel, request)
        except BadRequest:
            log.warning("a peer speaks something else; hanging up")

    def _host(self, channel: Channel, request: wire.Request) -> None:
        region = self._regions.get(request.epoch)
        if region is None:
            wire.send_answer(channel, wire.Answer(wire.Status.STALE))
            return
        with region.visit() as usable:
            if not usable:
                wire.send_answer(channel, wire.Answer(wire.Status.STALE))
                return
            ticket = wire.new_ticket()
            leaving = self._visit(channel, region, ticket)
            if leaving is None:
                return
            status = self._farewell(region, ticket, leaving.immediate)
        wire.send_answer(channel, wire.Answer(status))

    def _visit(self, channel: Channel, region: VisitedRegion, ticket: bytes) -> wire.Request | None:
        """What the visitor says in the end; None if it hung up."""
        clean = False
        try:
            size, card = region.descriptor.length, self._library.card()
            wire.send_answer(channel, wire.Answer(wire.Status.OK, ticket, region.base, size, card))
            leaving = wire.receive_request(channel, STALL_SECONDS)
            if leaving is not None and leaving.word is wire.Word.ENTER:
                raise BadRequest
            clean = leaving is not None and leaving.word is wire.Word.LEAVE
            return leaving
        finally:
            if not clean:
                region.spoil()

    def _farewell(self, region: VisitedRegion, ticket: bytes, immediate: int | None) -> wire.Status:
        if region.closed:
            # The bytes are there, but they may be of the memory's next life.
            return wire.Status.STALE
        if immediate is not None:
            if not self._library.landed(ticket):
                region.spoil()
                return wire.Status.MISSING
            # Counted before the answer, so a writer that saw the end may rely on the count.
            region.arrivals.count(immediate)
        return wire.Status.OK
