"""D's end of a push: a wait for the count, the peer's word, the clock and a cancellation."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from math import inf

from pdgate.transfer.base import State, Transfer, TransferError
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.receiving import Phase, Receiving, Say
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.workers import HeldElsewhere
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.handshake import Unproven

MESSAGE_SECONDS = 5.0
"""For the whole of a message that has begun to come. Meanwhile a cancellation, the count and the clock are heard."""


class Waiting:
    """One push. `run` blocks; the others may be called from any thread.

    Args:
        adrift: Called once if the load has failed while bytes may still land.
        closing: Whether the engine ends, and with it the memory that they may land in.
        expect: Counts what lands, once it is known what P looks like and whether it gives a
            context along. Raises HandOverError, TransferError.
    """

    def __init__(
        self,
        channel: Channel,
        machine: Receiving,
        adrift: Callable[[HandOverError], None],
        closing: Callable[[], bool],
        expect: Callable[[PageShape, bool], Transfer],
    ) -> None:
        self._channel = channel
        self._sock = channel.sock
        self._pieces = messages.MessagePieces(channel)
        self._whole_by = inf
        self._machine = machine
        self._adrift = adrift
        self._closing = closing
        self._expect = expect
        self._expected: Transfer | None = None
        self._lock = threading.Lock()
        self._wake: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._cancelled = False
        self._count: Transfer | None = None
        self._deaf = False

    def cancel(self) -> None:
        self._cancelled = True
        self._stir()

    def run(self) -> None:
        """Returns when no byte can land any more. Raises HandOverError if it went wrong."""
        self._loop()
        if self._machine.error is not None:
            raise self._machine.error

    def close(self) -> None:
        """The others may still be called, to no effect."""
        if self._expected is not None:
            self._expected.cancel()
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)

    def _counted(self, transfer: Transfer) -> None:
        """The expectation has ended, in whatever way."""
        self._count = transfer
        self._stir()

    def _stir(self) -> None:
        with self._lock:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def _loop(self) -> None:
        machine = self._machine
        watch = select.poll()
        watch.register(self._sock, select.POLLIN)
        wake = self._wake
        assert wake is not None
        watch.register(wake, select.POLLIN)
        told = False
        while not machine.over:
            if machine.phase is Phase.ADRIFT:
                if not told:
                    told = True
                    assert machine.error is not None
                    self._adrift(machine.error)
                if self._closing():
                    return
            left = min(machine.wake_at, self._whole_by) - time.monotonic()
            timeout = None if left == inf else max(0, int(left * 1000) + 1)
            ready = {found for found, _ in watch.poll(timeout)}
            if wake in ready:
                os.eventfd_read(wake)
            # Before what the peer says: all may have landed before it died.
            self._look()
            if self._sock.fileno() in ready and not machine.over:
                self._hear()
            if time.monotonic() >= self._whole_by and not machine.over:
                self._stop_listening(HandOverError(Why.BROKEN, "half a message"))
            self._say(machine.tick(time.monotonic()))

    def _look(self) -> None:
        """What other threads have left for us."""
        machine, now = self._machine, time.monotonic()
        if self._count is not None and self._count.state is State.DONE:
            machine.landed()
        elif self._cancelled:
            self._say(machine.give_up(now, HandOverError(Why.CANCELLED, "nobody waits for it")))
        elif self._count is not None:
            error = HandOverError(Why.BROKEN, f"our own memory: {self._count.error}")
            self._say(machine.give_up(now, error))

    def _hear(self) -> None:
        machine = self._machine
        try:
            said = self._anything() if self._deaf else self._pieces.take()
        except (messages.BadMessage, Unproven) as error:
            self._stop_listening(HandOverError(Why.BROKEN, str(error)))
            return
        except EOFError:
            machine.gone(HandOverError(Why.BROKEN, "the prefill engine is gone"))
            return
        except BlockingIOError:
            return
        except OSError as error:
            machine.gone(HandOverError(Why.BROKEN, f"the prefill engine is gone: {error}"))
            return
        if said is None:
            if self._whole_by == inf and self._pieces.begun:
                self._whole_by = time.monotonic() + MESSAGE_SECONDS
            return
        self._whole_by = inf
        machine.heard(time.monotonic())
        match said:
            case messages.Writing(shape, context):
                self._meet(shape, context=context)
            case messages.RefusedMessage() | messages.Failed():
                machine.gone(HandOverError(_why(said.why), said.message))
            case messages.Elsewhere(engine_id, shape, workers):
                machine.gone(HeldElsewhere(engine_id, shape, workers))
            case messages.Stopped():
                machine.gone(HandOverError(Why.BROKEN, "the prefill engine stopped unasked"))
            case messages.Pong():
                pass
            case _:
                self._stop_listening(
                    HandOverError(Why.BROKEN, f"the peer said {type(said).__name__}")
                )

    def _anything(self) -> messages.Message:
        """Raises EOFError, OSError."""
        self._sock.setblocking(False)
        if not self._sock.recv(1 << 16):
            raise EOFError
        return messages.Pong()

    def _meet(self, shape: PageShape, *, context: bool) -> None:
        if self._expected is not None:
            return
        try:
            self._expected = self._expect(shape, context)
        except (HandOverError, TransferError) as error:
            wrong = error if isinstance(error, HandOverError) else None
            wrong = wrong or HandOverError(Why.BROKEN, f"our own memory: {error}")
            self._say(self._machine.give_up(time.monotonic(), wrong))
            return
        self._machine.met()
        self._expected.add_done_callback(self._counted)

    def _stop_listening(self, error: HandOverError) -> None:
        """Its words cannot be believed, but the end of the connection can."""
        self._deaf = True
        self._whole_by = inf
        self._machine.give_up(time.monotonic(), error)
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as failure:
            self._machine.gone(HandOverError(Why.BROKEN, str(failure)))

    def _say(self, what: Say | None) -> None:
        if what is None or self._deaf:
            return
        message = messages.Ping() if what is Say.PING else messages.Cancel()
        try:
            self._sock.settimeout(MESSAGE_SECONDS)
            messages.send(self._channel, message)
        except OSError:
            # The end of the connection, or the silence behind it, is what we go by.
            return


def _why(text: str) -> Why:
    try:
        return Why(text)
    except ValueError:
        return Why.BROKEN
