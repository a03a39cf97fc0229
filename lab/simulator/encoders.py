"""Encoding of media in a simulation: each engine encodes one item after the other.

With encode engines in the fleet, a call's items go to those before prefill is chosen, as forwarders/encoding.py has it. Without any,
the engine that reads the prompt encodes them first. What it reads for other calls meanwhile is not held up, so what encode
engines are worth is underestimated.
"""

from collections.abc import Callable

from pdgate.lab.simulator.agenda import Agenda


class SimulatedEncoders:
    """
    Attributes:
        apart: Whether there are encode engines.
    """

    def __init__(self, agenda: Agenda, item_seconds: float, *, apart: bool) -> None:
        """Raises ValueError for a negative time."""
        if not item_seconds >= 0:
            raise ValueError("an item cannot take less than no time to encode")
        self._agenda = agenda
        self._item_seconds = item_seconds
        self._free_at: dict[str, float] = {}
        self.apart = apart

    def encode(self, at: str, items: int, done: Callable[[], None]) -> None:
        """Encode at the engine of this id, behind what it has to encode already."""
        begins = max(self._agenda.now, self._free_at.get(at, 0.0))
        ends = self._free_at[at] = begins + items * self._item_seconds
        self._agenda.at(ends, done)
