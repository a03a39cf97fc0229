"""Which engines have failed a call, and which may be tried again.

An engine that refused, or was too slow, is given up for this call. One that failed may
have stumbled over its peer, so where there is no other it gets a second chance, and one more
without a peer (`unfit` are those for whom that would be the same again).

A call on which two engines fail in the same way would fail on a third one as well, or end
it: it is the call, not they (`broken`).
"""

from collections.abc import Mapping
from typing import Final

from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    KvExpired,
)

CHANCES = 2

_NOBODY: Final[frozenset[str]] = frozenset()
_NO_FAILURES: Final[Mapping[str, int]] = {}
_NO_WAYS: Final[Mapping[str, tuple[str, str]]] = {}


class Tried:
    """
    Attributes:
        failures: Engine -> how often it failed, an engine that is given up at least CHANCES times.
        without_prefill: A decode engine is to read the prompt itself, if there is one that can.
        unfit: Engines that failed with nobody else involved, refused, or were too slow.
        broken: The two engines that failed on it in the same way, and not over the same peer.
    """

    __slots__ = ("_ways", "broken", "failures", "first_cause", "unfit", "without_prefill")

    def __init__(self) -> None:
        # Most calls leave these as they are, so nothing is made for them: what changes is replaced.
        self.first_cause: GatewayError | None = None
        self.without_prefill = False
        self.broken: tuple[str, ...] = ()
        self.unfit: frozenset[str] = _NOBODY
        self.failures: Mapping[str, int] = _NO_FAILURES
        self._ways: Mapping[str, tuple[str, str]] = _NO_WAYS

    def note(self, error: GatewayError, prefill: str = "") -> None:
        """`prefill`: the engine whose KV was used, if it was decode that failed."""
        self.first_cause = self.first_cause or error
        if not error.at:
            return
        # That it came too late for this KV does not say that it would for another.
        final = isinstance(error, EngineRefused | EngineTooSlow) and not isinstance(
            error, KvExpired
        )
        self._add(error.at, CHANCES if final else 1)
        if final or not prefill:
            self.unfit |= {error.at}
        # Its subclasses are about the engine's own state: busy, slow, shutting down.
        if type(error) is EngineFailed:
            self._note_way(str(error), error.at, prefill)

    def suspect(self, engine: str) -> None:
        """Nobody heard from it, but what failed had to do with it."""
        self._add(engine, 1)

    @property
    def failed(self) -> set[str]:
        return set(self.failures)

    @property
    def given_up(self) -> set[str]:
        return {engine for engine, failures in self.failures.items() if failures >= CHANCES}

    def _add(self, engine: str, weight: int) -> None:
        self.failures = {**self.failures, engine: self.failures.get(engine, 0) + weight}

    def _note_way(self, message: str, at: str, prefill: str) -> None:
        """Two decode engines that fail over one prefill engine may both tell of that one."""
        before = self._ways.get(message)
        if before is None:
            self._ways = {**self._ways, message: (at, prefill)}
            return
        same_peer = prefill and prefill == before[1]
        if before[0] != at and not same_peer:
            self.broken = (before[0], at)
