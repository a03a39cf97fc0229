"""The worker's end of a claim: asks the decode engine, then waits for how it ends."""

import time
from collections.abc import Callable
from typing import Self

from pdgate.cluster.queue.contract import Item
from pdgate.engine.prefill_worker.wire import (
    PURPOSE,
    BadLine,
    Claim,
    ClaimWord,
    Lines,
    WorkerAnswer,
)
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import shut

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""Of a decode engine for which we work: frozen or cut off, it must not keep us from others."""


class Unreachable(Exception):
    """The decode engine is not there, or broke off."""


class Claiming:
    """Raises Unreachable, in all that it does."""

    def __init__(self, item: Item, identity: Identity) -> None:
        try:
            channel = dial((item.host, item.port), identity, PURPOSE, CONNECT_SECONDS)
        except OSError as error:
            raise Unreachable(f"{item.host}:{item.port}: {error}") from None
        self._channel = channel
        self._sock = channel.sock
        self._lines = Lines(channel)

    def ask(self, claim: Claim) -> ClaimWord:
        try:
            self._sock.settimeout(ANSWER_SECONDS)
            self._lines.say(claim)
            return self._lines.hear(WorkerAnswer).said
        except (OSError, BadLine) as error:
            raise Unreachable(str(error)) from None

    def wait(self, every_seconds: float, beat: Callable[[], None]) -> ClaimWord:
        """The last word. Until it comes, `beat` is called now and then."""
        now = time.monotonic()
        beat_at, silent_at = now + every_seconds, now + SILENCE_SECONDS
        while True:
            try:
                self._sock.settimeout(max(0.001, min(beat_at, silent_at) - time.monotonic()))
                said = self._lines.hear(WorkerAnswer).said
                if said is not ClaimWord.YOURS:
                    return said
                silent_at = time.monotonic() + SILENCE_SECONDS
            except TimeoutError:
                if time.monotonic() >= silent_at:
                    raise Unreachable("the decode engine says nothing any more") from None
            except (OSError, BadLine) as error:
                raise Unreachable(str(error)) from None
            if time.monotonic() >= beat_at:
                beat()
                beat_at = time.monotonic() + every_seconds

    def cut(self) -> None:
        """End whatever is being waited for, from another thread."""
        shut(self._sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
