"""The worker's end of a claim: asks the decode engine, then waits for how it ends."""

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pdgate.cluster.queue.contract import Item
from pdgate.engine.prefill_worker.wire import Answer, BadLine, Claim, Lines, Word
from pdgate.transfer.listener import shut

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0


class Unreachable(Exception):
    """The decode engine is not there, or broke off."""


class Claiming:
    """Raises Unreachable, in all that it does."""

    def __init__(self, item: Item) -> None:
        try:
            self._sock = socket.create_connection((item.host, item.port), CONNECT_SECONDS)
        except OSError as error:
            raise Unreachable(f"{item.host}:{item.port}: {error}") from None
        # A decode engine whose host is gone says nothing; without this we would wait on.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._lines = Lines(self._sock)

    def ask(self, claim: Claim) -> Word:
        try:
            self._sock.settimeout(ANSWER_SECONDS)
            self._lines.say(claim)
            return self._lines.hear(Answer).said
        except (OSError, BadLine) as error:
            raise Unreachable(str(error)) from None

    def wait(self, every_seconds: float, beat: Callable[[], None]) -> Word:
        """The last word. Until it comes, `beat` is called now and then."""
        beat_at = time.monotonic() + every_seconds
        while True:
            try:
                self._sock.settimeout(max(0.001, beat_at - time.monotonic()))
                return self._lines.hear(Answer).said
            except TimeoutError:
                beat()
                beat_at = time.monotonic() + every_seconds
            except (OSError, BadLine) as error:
                raise Unreachable(str(error)) from None

    def cut(self) -> None:
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
