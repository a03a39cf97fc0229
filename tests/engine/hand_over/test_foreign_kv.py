"""The negative control: decode handed another prompt's KV gives another answer, in every protocol.

Without it, equal answers could mean that decode quietly computed the prompt itself.
"""

from contextlib import ExitStack

import pytest

from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from tests.support.core_pairs import ROWS, Crossing, Row, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of

OURS = "my own prompt, which is exactly as long as the foreign one"
FOREIGN = "what someone else asked, which is as long as my own prompt"

ONE_WAY = [row for row in ROWS if row != Row("vllm-kvt", Mode.BATCH)]
"""There decode itself sends prefill its prompt."""


@pytest.mark.parametrize("row", ONE_WAY, ids=str)
def test_foreign_kv_changes_the_answer(row: Row) -> None:
    assert len(OURS) == len(FOREIGN)
    with ExitStack() as stack:
        alone = engine()
        alone.core.start()
        stack.callback(alone.core.stop)
        right = alone.tokens(ask("alone", OURS, GREEDY))
        sides = []
        for role in ("prefill", "decode"):
            backend = registry.load("shm")
            stack.callback(backend.close)
            sides.append(side(stack, role, row.protocol, backend, layout(), mover="threads"))
        crossing = Crossing(row, *sides)

        wrong = tokens_of(crossing.answer(FOREIGN, GREEDY, "c1-1", at_decode=OURS))

        assert wrong != right
