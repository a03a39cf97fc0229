"""Which engines have failed a call, and which may be tried again.

An engine that refused, or was too slow, is given up for this call. One that failed may
have stumbled over its peer, so where there is no other it gets a second chance.
"""

from pdgate.protocols.errors import EngineRefused, EngineTooSlow, GatewayError

CHANCES = 2


class Tried:
    def __init__(self) -> None:
        self.first_cause: GatewayError | None = None
        self._failures: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._failures)

    def note(self, error: GatewayError) -> None:
        self.first_cause = self.first_cause or error
        final = isinstance(error, EngineRefused | EngineTooSlow)
        self._add(error.at, CHANCES if final else 1)

    def suspect(self, engine: str) -> None:
        """Nobody heard from it, but what failed had to do with it."""
        self._add(engine, 1)

    @property
    def failed(self) -> set[str]:
        return set(self._failures)

    @property
    def given_up(self) -> set[str]:
        return {engine for engine, failures in self._failures.items() if failures >= CHANCES}

    def _add(self, engine: str, weight: int) -> None:
        self._failures[engine] = self._failures.get(engine, 0) + weight
