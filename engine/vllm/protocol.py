"""vllm-kvt on vLLM: the reference engine's, with the one difference that vLLM makes.

Our own core offers a prompt before its answer goes out. vLLM's worker hears of it with the
next step, so a decode that was told at once may ask a moment too early.
"""

from dataclasses import replace
from typing import Final

from pdgate.engine.connector import Arrival, Keep, Load
from pdgate.engine.hand_over.kvt import Kvt

PATIENCE_SECONDS: Final = 5.0


class KvtOnVllm(Kvt):
    def plan(self, arrival: Arrival) -> Load | Keep | None:
        plan = super().plan(arrival)
        if isinstance(plan, Load) and plan.ticket.wait_seconds < PATIENCE_SECONDS:
            return Load(plan.tokens, replace(plan.ticket, wait_seconds=PATIENCE_SECONDS))
        return plan
