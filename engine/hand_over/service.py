"""The prefill side's port: answers readers from the table of offers."""

import logging
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdgate.engine.connector import Core
from pdgate.engine.hand_over import messages
from pdgate.engine.hand_over.errors import HandOverError, Why
from pdgate.engine.hand_over.offers import Offers
from pdgate.engine.hand_over.shape import Shape, differences
from pdgate.transfer import descriptors
from pdgate.transfer.base import Region
from pdgate.transfer.listener import Listener

MAX_WAIT_SECONDS = 3600.0

log = logging.getLogger(__name__)

Submit = Callable[[str, Sequence[int]], None]
"""Starts a prefill under a key. Raises HandOverError."""


@dataclass(frozen=True, slots=True)
class Offering:
    """What a service offers from, and who it is."""

    core: Core
    offers: Offers
    region: Region
    shape: Shape
    engine_id: str


class Service:
    def __init__(self, host: str, port: int, offering: Offering, submit: Submit) -> None:
        """Listens from now on. Raises OSError if the address is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = sock.getsockname()[1]
        self._offering = offering
        self._submit = submit
        self._listener = Listener("pdgate-kv", sock, self._serve)

    def close(self) -> None:
        self._offering.offers.close()
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose host is gone says nothing; without this its thread would stay.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            while (message := messages.receive(sock)) is not None:
                messages.send(sock, self._answer(message))
        except messages.BadMessage as error:
            log.warning("a peer on the KV port spoke something else: %s", error)

    def _answer(self, message: messages.Message) -> messages.Message:
        try:
            match message:
                case messages.Ask(key, engine_id, wait_seconds, shape):
                    self._meant(engine_id)
                    return self._offer(key, wait_seconds, shape)
                case messages.Release(key, offer_id):
                    return messages.Released(self._release(key, offer_id))
                case messages.Abandon(key, engine_id):
                    self._meant(engine_id)
                    return messages.Released(self._abandon(key))
                case messages.Prefill(key, prompt):
                    self._submit(key, prompt)
                    return messages.Accepted()
                case _:
                    raise messages.BadMessage(f"{type(message).__name__} is an answer")
        except HandOverError as error:
            return messages.Refused(error.why, error.message)

    def _meant(self, engine_id: str) -> None:
        """A restarted engine may use the same keys for other requests."""
        if engine_id not in ("", self._offering.engine_id):
            raise HandOverError(Why.WRONG_ENGINE, "that was another life of this engine")

    def _offer(self, key: str, wait_seconds: float, theirs: Shape) -> messages.Offered:
        ours = self._offering.shape
        # Before the wait: pages that do not fit are not worth waiting for.
        if wrong := differences(ours, theirs):
            raise HandOverError(Why.WRONG_SHAPE, wrong)
        if not math.isfinite(wait_seconds):
            raise messages.BadMessage("a wait without end")
        wait_seconds = min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        offer = self._offering.offers.wait(key, wait_seconds)
        return messages.Offered(
            offer.id,
            descriptors.as_data(self._offering.region.descriptor),
            ours,
            list(offer.block_ids),
            offer.tokens,
            offer.first_token,
        )

    def _release(self, key: str, offer_id: str) -> bool:
        request_id = self._offering.offers.release(key, offer_id)
        if request_id is not None:
            self._offering.core.release(request_id)
        return request_id is not None

    def _abandon(self, key: str) -> bool:
        found = self._offering.offers.abandon(key)
        if found is None:
            return False
        request_id, offered = found
        if offered:
            self._offering.core.release(request_id)
        else:
            self._offering.core.abort(request_id)
        return offered
