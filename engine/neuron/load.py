"""One request of D's, from its first lookup until its pages are filled."""

from dataclasses import dataclass

from pdgate.engine.neuron.posts import CompletionToken
from pdgate.engine.worker_rules import RequestState


@dataclass(eq=False, slots=True)
class NeuronLoad:
    """
    Attributes:
        request_id: D's own; empty for one whose pages are not needed.
        blocks: To fill, in order of the prompt; None where the KV is there already.
        until: P must have it by then (time.monotonic()).
    """

    request_id: str
    uid: str
    blocks: list[int | None]
    bytes: int
    until: float
    state: RequestState = RequestState.WAITING
    cancelled: bool = False
    token: CompletionToken | None = None
    output: int | None = None

    @property
    def pages(self) -> int:
        """How many are filled from elsewhere."""
        return sum(block is not None for block in self.blocks)
