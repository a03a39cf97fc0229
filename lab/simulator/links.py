"""Links between engines: each sends KV to one peer at a time, and receives from one."""

from collections.abc import Callable

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.hardware import Hardware


class SimulatedLinks:
    """
    Attributes:
        tokens: Whose KV was moved.
    """

    def __init__(self, agenda: Agenda, hardware: Hardware) -> None:
        self.tokens = 0
        self._agenda = agenda
        self._hardware = hardware
        # When the latest transfer of each will be over.
        self._sent: dict[str, float] = {}
        self._received: dict[str, float] = {}

    def move(self, sender: str, receiver: str, tokens: int, done: Callable[[], None]) -> None:
        """Move tokens after what both have to move already."""
        now = self._agenda.now
        begins = max(now, self._sent.get(sender, now), self._received.get(receiver, now))
        ends = begins + self._hardware.transfer_seconds(tokens)
        self._sent[sender] = self._received[receiver] = ends
        self.tokens += tokens
        self._agenda.at(ends, done)
