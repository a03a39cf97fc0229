"""A conversation with a prefill engine, from the decode side. Blocking, one thread."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pdgate.cluster import address as address_text
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks
from pdgate.transfer.messenger.workers import HeldElsewhere
from pdgate.transfer.runtime.channel import Watch, dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import Unproven
from pdgate.transfer.runtime.listener import shut

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""For what the peer can say at once."""


class Peer:
    """All methods raise HandOverError, also when `interrupt` was called.

    Attributes:
        channel: For a push, whose messages come and go in any order.
        name: Of the peer's process, which it has proven.
    """

    def __init__(
        self,
        address: tuple[str, int],
        engine_id: str,
        until: float,
        identity: Identity,
        *,
        name: str = "",
        watch: Watch | None = None,
        purpose: str = messages.PURPOSE,
    ) -> None:
        """`until` is a time of time.monotonic(): no connection attempt outlasts it. `name`: which
        process has to answer, if that is known. `watch` as in `dial`. `purpose`: what is asked for there.
        """
        self.engine_id = engine_id
        self._where = address_text.joined(*address)
        seconds = max(0.001, min(CONNECT_SECONDS, until - time.monotonic()))
        try:
            self.channel = dial(address, identity, purpose, seconds, peer=name, watch=watch)
        except Unproven as error:
            raise HandOverError(Why.UNPROVEN, f"{self._where}: {error}") from None
        except OSError as error:
            raise HandOverError(Why.BROKEN, f"no connection to {self._where}: {error}") from None
        self.name = self.channel.peer
        self._sock = self.channel.sock

    def ask(
        self,
        key: str,
        wait_seconds: float,
        read_seconds: float,
        shape: PageShape,
        ranks: Ranks = ALL,
        *,
        only_here: bool = False,
    ) -> messages.Offered:
        """The pages stay until we release them, hang up, or take longer than we said.

        Raises HeldElsewhere too.
        """
        said = messages.Ask(
            key, self.engine_id, wait_seconds, read_seconds, shape, ranks, only_here
        )
        answer = self._talk(said, wait_seconds + ANSWER_SECONDS)
        if isinstance(answer, messages.Offered):
            return answer
        if isinstance(answer, messages.Elsewhere):
            raise HeldElsewhere(answer.engine_id, answer.shape, answer.workers)
        raise self._unexpected(answer)

    def release(self, key: str, offer_id: str, bytes_read: int = 0) -> bool:
        return self._released(messages.Release(key, offer_id, bytes_read))

    def abandon(self, key: str) -> bool:
        return self._released(messages.Abandon(key, self.engine_id))

    def prefill(
        self,
        key: str,
        prompt: Sequence[int],
        lent: messages.Lent | None = None,
        readers: Sequence[str] = (),
    ) -> None:
        said = messages.Prefill(key, list(prompt), lent, tuple(readers))
        answer = self._talk(said, ANSWER_SECONDS)
        if not isinstance(answer, messages.Accepted):
            raise self._unexpected(answer)

    def say(self, message: messages.Message) -> None:
        """Without waiting for an answer."""
        try:
            self._sock.settimeout(ANSWER_SECONDS)
            messages.send(self.channel, message)
        except OSError as error:
            raise HandOverError(Why.BROKEN, f"{self._where}: {error}") from None

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
        self.channel.close()

    def _released(self, said: messages.Message) -> bool:
        answer = self._talk(said, ANSWER_SECONDS)
        if isinstance(answer, messages.Released):
            return answer.held
        raise self._unexpected(answer)

    def _talk(self, said: messages.Message, seconds: float) -> messages.Message:
        until = time.monotonic() + seconds
        try:
            self._sock.settimeout(seconds)
            messages.send(self.channel, said)
            answer = messages.receive(self.channel, until)
        except (OSError, messages.BadMessage) as error:
            raise HandOverError(Why.BROKEN, f"{self._where}: {error}") from None
        if answer is None:
            raise HandOverError(Why.BROKEN, f"{self._where} hung up")
        if isinstance(answer, messages.RefusedMessage):
            try:
                why = Why(answer.why)
            except ValueError:
                why = Why.BROKEN
            raise HandOverError(why, f"{answer.message} ({self._where})")
        return answer

    def _unexpected(self, answer: messages.Message) -> HandOverError:
        return HandOverError(Why.BROKEN, f"{self._where} answered {type(answer).__name__}")
