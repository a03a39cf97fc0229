"""The mover as a process of its own, seen from the engine.

Orders go out without waiting: what the socket does not take at once waits in a list, which
the thread that also hears of the ends sends on. A mover that dies fails what it had, and the
next destination gets a new one.
"""

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Descriptor, PeerLost, Range, Region, TransferError
from pdgate.transfer.messenger import mover_wire as wire
from pdgate.transfer.messenger.mover import Destination, Done, Mover
from pdgate.transfer.plan.segments import Ranges
from pdgate.transfer.runtime.fleet import Identity

_NUMBERS = itertools.count(1)


class ProcessMover(Mover):
    def __init__(self, backend: Backend, region: Region, identity: Identity | None = None) -> None:
        """`region` is the backend's, and `identity` what it proves to peers. Starts it; it takes
        orders at once and follows them when it is up. Raises OSError, TransferError.
        """
        self._backend = backend
        self._identity = identity or Identity()
        self._region = region
        self._lock = threading.Lock()
        self._closed = False
        self._process = _Process(backend, region, self._identity)

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, remote: Descriptor, line: int) -> Destination:
        with self._lock:
            if self._process.gone and not self._closed:
                self._process = _Process(self._backend, self._region, self._identity)
            return _There(self._process, remote, line)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._process.close()


class _There(Destination):
    def __init__(self, process: "_Process", remote: Descriptor, line: int) -> None:
        self._process = process
        self._number = next(_NUMBERS)
        process.post(wire.Open(self._number, descriptors.as_data(remote)), os.dup(line))

    def write(self, ranges: Sequence[Range], until: float, immediate: int, done: Done) -> None:
        packed = ranges.packed() if isinstance(ranges, Ranges) else wire.pack(ranges)
        self._process.write(self._number, packed, until, immediate, done)

    def cancel(self) -> None:
        self._process.post(wire.MoverCancel(self._number))

    def close(self) -> None:
        self._process.post(wire.Close(self._number))


class _Process:
    """One life of the process."""

    def __init__(self, backend: Backend, region: Region, identity: Identity) -> None:
        memory = region.share()
        if memory is None:
            raise TransferError(f"memory of {backend.name} cannot be moved by another process")
        self._sock, theirs = wire.new_pair()
        # `-P`: what lies in the working directory must not be taken for our packages.
        words = [sys.executable, "-P", "-m", "pdgate.transfer.messenger.mover_process"]
        numbers = [theirs.fileno(), memory, len(region.memory)]
        options = json.dumps(dict(backend.adopter_options()))
        try:
            with theirs:
                # A session of its own: the terminal's interrupt is for the engine to answer.
                self._process = subprocess.Popen(
                    [*words, *map(str, numbers), backend.name, options],
                    pass_fds=(theirs.fileno(), memory),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self._sock.close()
            raise
        self.pid = self._process.pid
        # Not by its command line or environment, which others may see.
        self._sock.send(wire.encode(wire.MoverIntroduction.of(identity)))
        self._sock.setblocking(False)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._backlog: deque[tuple[bytes, int | None]] = deque()
        self._waiting: dict[int, Done] = {}
        self._gone = False
        self._thread = threading.Thread(target=self._run, name="pdgate-mover", daemon=True)
        self._thread.start()

    @property
    def gone(self) -> bool:
        with self._lock:
            return self._gone

    def write(
        self,
        destination: int,
        ranges: bytes,
        until: float,
        immediate: int,
        done: Done,
    ) -> None:
        number = next(_NUMBERS)
        with self._lock:
            if not self._gone:
                self._waiting[number] = done
                *first, last = wire.parts(ranges)
                for part in first:
                    self._post(wire.More(number, part), None)
                self._post(wire.MoverWrite(number, destination, last, until, immediate), None)
                return
        done(PeerLost("our mover died"))

    def post(self, order: wire.Order, fd: int | None = None) -> None:
        """`fd` is ours to close."""
        with self._lock:
            if not self._gone:
                self._post(order, fd)
            elif fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Kills it: that is what stops a copy for certain, and its peers see it."""
        self._process.kill()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _post(self, order: wire.Order, fd: int | None) -> None:
        packet = (wire.encode(order), fd)
        if self._backlog or not self._send(*packet):
            self._backlog.append(packet)
            os.eventfd_write(self._wake, 1)

    def _send(self, data: bytes, fd: int | None) -> bool:
        """False if there is no room, and then `fd` is still ours. Raises OSError."""
        try:
            if fd is None:
                self._sock.send(data)
            else:
                socket.send_fds(self._sock, [data], [fd])
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            # It is dying; `_run` sees its end and fails what waits.
            pass
        except OSError:
            if fd is not None:
                os.close(fd)
            raise
        if fd is not None:
            os.close(fd)
        return True

    def _run(self) -> None:
        watch = select.poll()
        watch.register(self._wake, select.POLLIN)
        try:
            while True:
                with self._lock:
                    self._catch_up()
                    room = select.POLLOUT if self._backlog else 0
                watch.register(self._sock, select.POLLIN | room)
                for found, _ in watch.poll():
                    if found == self._wake:
                        os.eventfd_read(self._wake)
                    elif not self._hear():
                        return
        finally:
            self._end()

    def _catch_up(self) -> None:
        """Raises OSError."""
        while self._backlog:
            packet = self._backlog.popleft()
            if not self._send(*packet):
                self._backlog.appendleft(packet)
                return

    def _hear(self) -> bool:
        """False when the process is gone."""
        # Without a word after all: poll also wakes for room.
        with contextlib.suppress(BlockingIOError):
            try:
                ended = wire.receive_end(self._sock)
            except ConnectionResetError:
                return False
            if ended is None:
                return False
            with self._lock:
                done = self._waiting.pop(ended.number)
            done(TransferError(ended.error) if ended.error else None)
        return True

    def _end(self) -> None:
        """Only when it is dead for certain do its writes count as ended."""
        self._process.kill()
        self._process.wait()
        with self._lock:
            self._gone = True
            waiting, self._waiting = self._waiting, {}
            backlog, self._backlog = self._backlog, deque()
        for _, fd in backlog:
            if fd is not None:
                os.close(fd)
        self._sock.close()
        os.close(self._wake)
        for done in waiting.values():
            done(PeerLost("our mover died"))
