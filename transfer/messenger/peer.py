"""A conversation with a prefill engine, from the decode side. Blocking, one thread."""

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pdgate.transfer.kit.listener import shut
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import Shape

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""For what the peer can say at once."""


class Peer:
    """All methods raise HandOverError, also when `interrupt` was called."""

    def __init__(self, host: str, port: int, engine_id: str, until: float) -> None:
        """`until` is a time of time.monotonic(): no connection attempt outlasts it."""
        self.engine_id = engine_id
        self._name = f"{host}:{port}"
        seconds = max(0.001, min(CONNECT_SECONDS, until - time.monotonic()))
        try:
            self._sock = socket.create_connection((host, port), seconds)
        except OSError as error:
            raise HandOverError(Why.BROKEN, f"no connection to {self._name}: {error}") from None
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def socket(self) -> socket.socket:
        """For a push, whose messages come and go in any order."""
        return self._sock

    def ask(
        self, key: str, wait_seconds: float, read_seconds: float, shape: Shape
    ) -> messages.Offered:
        """The pages stay until we release them, hang up, or take longer than we said."""
        said = messages.Ask(key, self.engine_id, wait_seconds, read_seconds, shape)
        answer = self._talk(said, wait_seconds + ANSWER_SECONDS)
        if isinstance(answer, messages.Offered):
            return answer
        raise self._unexpected(answer)

    def release(self, key: str, offer_id: str, bytes_read: int = 0) -> bool:
        return self._released(messages.Release(key, offer_id, bytes_read))

    def abandon(self, key: str) -> bool:
        return self._released(messages.Abandon(key, self.engine_id))

    def prefill(self, key: str, prompt: Sequence[int], lent: messages.Lent | None = None) -> None:
        answer = self._talk(messages.Prefill(key, list(prompt), lent), ANSWER_SECONDS)
        if not isinstance(answer, messages.Accepted):
            raise self._unexpected(answer)

    def say(self, message: messages.Message) -> None:
        """Without waiting for an answer."""
        try:
            self._sock.settimeout(ANSWER_SECONDS)
            messages.send(self._sock, message)
        except OSError as error:
            raise HandOverError(Why.BROKEN, f"{self._name}: {error}") from None

    def interrupt(self) -> None:
        """From another thread: whatever is being waited for ends."""
        shut(self._sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._sock.close()

    def _released(self, said: messages.Message) -> bool:
        answer = self._talk(said, ANSWER_SECONDS)
        if isinstance(answer, messages.Released):
            return answer.held
        raise self._unexpected(answer)

    def _talk(self, said: messages.Message, seconds: float) -> messages.Message:
        try:
            self._sock.settimeout(seconds)
            messages.send(self._sock, said)
            answer = messages.receive(self._sock)
        except (OSError, messages.BadMessage) as error:
            raise HandOverError(Why.BROKEN, f"{self._name}: {error}") from None
        if answer is None:
            raise HandOverError(Why.BROKEN, f"{self._name} hung up")
        if isinstance(answer, messages.Refused):
            try:
                why = Why(answer.why)
            except ValueError:
                why = Why.BROKEN
            raise HandOverError(why, f"{answer.message} ({self._name})")
        return answer

    def _unexpected(self, answer: messages.Message) -> HandOverError:
        return HandOverError(Why.BROKEN, f"{self._name} answered {type(answer).__name__}")
