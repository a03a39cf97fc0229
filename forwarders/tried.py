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
        weight = CHANCES if final else 1
        self._failures[error.at] = self._failures.get(error.at, 0) + weight

    @property
    def failed(self) -> set[str]:
        return set(self._failures)

    @property
    def given_up(self) -> set[str]:
        return {engine for engine, failures in self._failures.items() if failures >= CHANCES}
