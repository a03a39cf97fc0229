"""Pages that lie with the ranks: the engine's process sends rows and queries, and gets the mix of values."""

from collections.abc import Sequence

import numpy as np

from pdgate.engine.cache.memory import Mix, Slots, TokenRun
from pdgate.engine.layout import Layout
from pdgate.engine.model.arrays import beside, host
from pdgate.engine.model.weights import Floats
from pdgate.engine.ranks.crew import Crew
from pdgate.engine.ranks.seats import RankSeat, places


class RanksKv:
    """Implements `cache.memory.PagedKv`. A rank that is gone raises RankLost."""

    def __init__(self, layout: Layout, crew: Crew) -> None:
        self.layout = layout
        self._crew = crew
        self._places = places(layout)

    def write(self, layer: int, slots: Slots, planes: Sequence[Floats]) -> None:
        """Write without waiting: a rank obeys in turn, so that what comes next finds the rows there."""
        planes = [host(plane) for plane in planes]
        for place in self._with(layer):
            own = [plane[:, place.heads.start : place.heads.stop] for plane in planes]
            self._crew.post("write", layer, slots, own, to=[place.number])

    def attend(self, layer: int, queries: Floats, runs: Sequence[TokenRun], mix: Mix) -> Floats:
        held = self._with(layer)
        asked = np.split(host(queries), self.layout.tp, axis=1)
        sent = [TokenRun(run.start, run.count, tuple(run.block_ids)) for run in runs]
        answers = self._crew.ask(
            "attend",
            [(layer, asked[place.tensor_rank], sent, mix) for place in held],
            to=[place.number for place in held],
        )
        parts = [answer.value for answer in answers]
        mixed: Floats = beside(
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), queries
        )
        return mixed

    def _with(self, layer: int) -> list[RankSeat]:
        return [place for place in self._places if layer in place.layers]
