"""Accounts on this host: in this process, or in memory that all workers of a gateway share.

    <folder>/tenants.accounts     a row for each tenant: its name and its account; changed under its lock
    <folder>/<worker>.held        what each worker's running calls hold; ends with the worker

A lock is held for some microseconds, and waited for WAIT_SECONDS at most: a worker that was stopped while it had it
must not stop the others, so after that the row is changed without.

What a tenant has taken stays when it is configured no more; a tenant for which there is no row left is counted
by each worker for itself, MOST_ALONE of them.
"""

import fcntl
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from time import monotonic, time
from typing import BinaryIO, Final

from pdgate.gateway.security.token_limits import TokenLimit
from pdgate.gateway.sync.workers.folder import Folder
from pdgate.gateway.tenants import account
from pdgate.gateway.tenants.account import AccountView, ReservedTokens, ReserveResult, TokensTaken

log = logging.getLogger(__name__)

MOST_TENANTS: Final = 4096
MOST_ALONE: Final = 16384
"""Those of whom no call runs and none has come for longest are counted anew beyond."""
NAME_BYTES: Final = 72
_NAME_WORDS: Final = NAME_BYTES // 8
_ROW_WORDS: Final = 24
_ROW_BYTES: Final = _ROW_WORDS * 8
_BYTES: Final = (MOST_TENANTS + 1) * _ROW_BYTES
"""The first row says how many there are, and how often a worker has come."""
_EDITION: Final = 1
_HELD_BYTES: Final = MOST_TENANTS * 16
WAIT_SECONDS: Final = 0.005
IMPATIENT_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.5
"""Between looks for other workers that have ended."""


class LocalAccounts:
    """
    Attributes:
        changes: How often something was settled here.
    """

    def __init__(
        self,
        folder: Path | None = None,
        clock: Callable[[], float] = time,
        saved: Callable[[], dict[str, list[int]]] = dict,
    ) -> None:
        """`clock`: Unix time. `saved`: name -> the account that an earlier gateway left. Raises OSError."""
        self.changes = 0
        self._clock = clock
        self._rows: dict[str, int | None] = {}
        self._file: BinaryIO | None = None
        self._folder: Folder | None = None
        self._theirs: list[memoryview] = []
        self._looked = 0.0
        self._edition = 0
        self._impatient = 0.0
        self._alone: OrderedDict[str, tuple[list[int], list[int]]] = OrderedDict()
        if folder is None:
            self._bytes = memoryview(bytearray(_BYTES))
            self._held = memoryview(bytearray(_HELD_BYTES)).cast("q")
            self._words = self._bytes.cast("q")
            self._take_over(saved)
            return
        self._folder = Folder(folder, "held", _HELD_BYTES)
        self._held = self._folder.memory.cast("q")
        descriptor = os.open(folder / "tenants.accounts", os.O_RDWR | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "r+b")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            first = os.fstat(descriptor).st_size < _BYTES
            # Not sparse: a page that is missing later would end the process (SIGBUS).
            os.posix_fallocate(descriptor, 0, _BYTES)
            self._bytes = memoryview(mmap(descriptor, _BYTES))
            self._words = self._bytes.cast("q")
            if first:
                self._take_over(saved)
            # The others see that there is one more.
            self._words[_EDITION] += 1
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """What this worker's calls hold counts no more."""
        self._theirs = []
        if self._folder is not None:
            self._folder.close()
        if self._file is not None:
            self._file.close()

    def reserve(
        self,
        name: str,
        limits: tuple[TokenLimit, ...],
        needs: tuple[int, int],
        *,
        check: bool = True,
    ) -> ReserveResult:
        """`check`: whether limits can refuse it, and not only count it."""
        with self._locked():
            numbers, held, index = self._of(name)
            now = self._now()
            account.turn(numbers, limits, now)
            holds = self._all_held(held, index)
            if check and (refused := account.short(numbers, limits, needs, holds, now)):
                return ReserveResult(refused, AccountView(list(numbers), holds))
            reserved = account.reserve(numbers, limits, needs)
            held[0] += reserved.prompt
            held[1] += reserved.generated
            return ReserveResult(reserved, AccountView(list(numbers), _sum(holds, needs)))

    def settle(
        self,
        name: str,
        limits: tuple[TokenLimit, ...],
        reserved: ReservedTokens,
        taken: TokensTaken,
    ) -> None:
        self.changes += 1
        with self._locked():
            numbers, held, _ = self._of(name)
            account.turn(numbers, limits, self._now())
            account.settle(numbers, limits, reserved, taken)
            held[0] -= reserved.prompt
            held[1] -= reserved.generated

    def look(self, name: str, limits: tuple[TokenLimit, ...]) -> AccountView:
        with self._locked():
            numbers, held, index = self._of(name)
            account.turn(numbers, limits, self._now())
            return AccountView(list(numbers), self._all_held(held, index))

    def everything(self) -> dict[str, list[int]]:
        """Name -> account, of all tenants that have one."""
        with self._locked():
            return {
                self._name(row): list(self._numbers(row)) for row in range(1, self._words[0] + 1)
            }

    # How.

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _take_over(self, saved: Callable[[], dict[str, list[int]]]) -> None:
        for name, numbers in saved().items():
            row = self._row(name)
            if row is not None:
                self._numbers(row)[:] = memoryview(
                    b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
                ).cast("q")

    def _of(self, name: str) -> tuple[memoryview | list[int], memoryview | list[int], int]:
        """Its account, what our calls hold, and its place among what others hold; -1 for none."""
        if name in self._rows:
            row = self._rows[name]
        else:
            row = self._rows[name] = self._row(name)
        if row is None:
            alone = self._alone.get(name)
            if alone is None:
                self._make_room()
                alone = self._alone[name] = [0] * account.WORDS, [0, 0]
            self._alone.move_to_end(name)
            return alone[0], alone[1], -1
        at = (row - 1) * 2
        return self._numbers(row), self._held[at : at + 2], at

    def _make_room(self) -> None:
        while len(self._alone) >= MOST_ALONE:
            name, (_, held) = next(iter(self._alone.items()))
            if any(held):
                # Its calls would be settled with an account that knows nothing of them.
                self._alone.move_to_end(name)
                return
            del self._alone[name], self._rows[name]

    def _numbers(self, row: int) -> memoryview:
        at = row * _ROW_WORDS + _NAME_WORDS
        return self._words[at : at + account.WORDS]

    def _name(self, row: int) -> str:
        at = row * _ROW_BYTES
        return bytes(self._bytes[at : at + NAME_BYTES]).rstrip(b"\0").decode()

    def _row(self, name: str) -> int | None:
        """A new one, if there is none of that name; None if all are given."""
        written = name.encode().ljust(NAME_BYTES, b"\0")
        if len(written) > NAME_BYTES:
            return None
        for row in range(1, self._words[0] + 1):
            at = row * _ROW_BYTES
            if self._bytes[at : at + NAME_BYTES] == written:
                return row
        row = self._words[0] + 1
        if row > MOST_TENANTS:
            if not self._alone:
                log.warning("more than %d tenants: each worker counts others alone", MOST_TENANTS)
            return None
        at = row * _ROW_BYTES
        self._bytes[at : at + NAME_BYTES] = written
        self._words[0] = row
        return row

    def _all_held(self, own: memoryview | list[int], index: int) -> tuple[int, int]:
        prompt, generated = own[0], own[1]
        if self._folder is not None and index >= 0:
            now, edition = monotonic(), self._words[_EDITION]
            if now >= self._looked + LOOK_SECONDS or edition != self._edition:
                self._looked, self._edition = now, edition
                self._theirs = [memory.cast("q") for memory in self._folder.others().values()]
            for theirs in self._theirs:
                prompt += theirs[index]
                generated += theirs[index + 1]
        return prompt, generated

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._file is None:
            yield
            return
        until = monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = monotonic()
                if now > until or now < self._impatient:
                    # Who has it was stopped: for a while it is not waited for again.
                    self._impatient = now + IMPATIENT_SECONDS
                    break
                os.sched_yield()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]
