"""Engines that join and leave while calls are served.

    fleet of 3 + 3, each announced in etcd
    every second   one is told to leave (SIGTERM), or a new one is started
    at the end     every one that left had exit status 0

The next one leaves only when the one that was started for the last is listed, so that there
are never fewer than two of a role; on a slow machine that makes the seconds longer.
"""

import signal
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from tests.end_to_end.reference.fleet import Engine, Fleet
from tests.support.etcd import EtcdServer

ROLES = ("prefill", "decode")
EACH = 3
EVERY_SECONDS = 1.0
END_SECONDS = 60
"""What an engine may take to finish its streams where all of them compute on two cores."""


class Churn:
    """
    Attributes:
        joined, left: How many did, after the first six.
    """

    def __init__(
        self, fleet: Fleet, etcd: EtcdServer, protocol: str, transfer: str, *flags: str
    ) -> None:
        """`flags` are the engines'."""
        self.joined = self.left = 0
        self._fleet = fleet
        self._etcd = etcd
        self._hand_over = protocol, transfer, *flags
        with ThreadPoolExecutor(EACH) as pool:
            self._here = {role: deque(pool.map(self._start, [role] * EACH)) for role in ROLES}
        self._ends: list[Future[int]] = []

    def run(self, changes: int) -> None:
        """So many joins and leaves; returns when the last of them is over."""
        with ThreadPoolExecutor() as pool:
            for number in range(changes // 2):
                role = ROLES[number % len(ROLES)]
                begun = time.monotonic()
                self._leave(role, pool)
                _wait_until(begun + EVERY_SECONDS)
                self._here[role].append(self._start(role))
                self.joined += 1
                _wait_until(begun + 2 * EVERY_SECONDS)
            assert [end.result() for end in self._ends] == [0] * self.left

    def _leave(self, role: str, pool: ThreadPoolExecutor) -> None:
        """The oldest, so that in time all of the first are gone."""
        leaver = self._here[role].popleft()
        leaver.process.signal(signal.SIGTERM)
        self._ends.append(pool.submit(leaver.process.wait_for_end, END_SECONDS))
        self.left += 1

    def _start(self, role: str) -> Engine:
        options = ("--min-itl-ms", "50", "--shutdown-timeout", str(END_SECONDS))
        engine = self._fleet.engine(
            role, *self._hand_over, "--etcd", self._etcd.endpoints[0], *options
        )
        key = f"/workers/{role}/{engine.url.removeprefix('http://').replace(':', '/')}"
        engine.process.wait_until(lambda: self._etcd.keys().count(key) or None, f"{key} in etcd")
        return engine


def _wait_until(then: float) -> None:
    """A pace is the point here, not a way to wait for something."""
    time.sleep(max(0.0, then - time.monotonic()))
