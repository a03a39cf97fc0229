"""A prefill process that dies or freezes while decode's pages are a device's: every page comes back,
and nothing is written to it afterwards.
"""

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.support import waiting
from tests.support.kv_layouts import PLAIN
from tests.transfer.device.nodes import DeviceNode
from tests.transfer.messenger.conftest import IMPATIENT
from tests.transfer.messenger.node_process import NodeProcess

pytestmark = pytest.mark.slow

TOKENS = 10

STATES: dict[str, Callable[[NodeProcess], object]] = {
    "before anything is computed": lambda prefill: prefill.do("expect", "k", TOKENS),
    "after a layer": lambda prefill: (
        prefill.do("expect", "k", TOKENS),
        prefill.do("computed", "k", TOKENS, 0),
    ),
}


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_a_killed_prefill_leaves_no_page_in_use(backend: str, state: str, push: bool) -> None:
    with (
        NodeProcess(backend) as prefill,
        closing(DeviceNode(backend, PLAIN, 1, patience=IMPATIENT)) as decode,
    ):
        STATES[state](prefill)
        decode.load("k", prefill.port, TOKENS, push=push)
        if push and state == "after a layer":
            waiting.wait_until(lambda: any(map(any, _pages(decode))), "a layer's pages")

        prefill.kill()

        assert decode.result() is not None
        assert (decode.used, decode.counters.stranded) == (0, 0)
        assert decode.device.idle


def _pages(node: DeviceNode) -> list[bytes]:
    return [node.device.now(memory) for memory in node.memories]
