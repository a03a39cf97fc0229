"""A connector of an engine whose pages are a device's: it records where the model's stream is, and
goes on; the hand-over waits. Whatever the device has not done yet, the other engine does not get.
"""

from contextlib import closing
from typing import Any

import pytest

from pdgate.engine.connector import Keep, Pages
from pdgate.engine.hand_over.two_sided import TwoSided
from tests.support import waiting
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, PROMPT, arrival
from tests.support.fake_core import SECONDS
from tests.support.fake_core_on_device import DeviceCore

KEPT = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.mark.parametrize("backend", ["tcp", "shm", "cuda-ipc"])
def test_decode_reads_what_prefill_has_computed(backend: str) -> None:
    with (
        closing(DeviceCore(backend, "vllm-nixl", "prefill")) as prefill,
        closing(DeviceCore(backend, "vllm-nixl", "decode")) as decode,
    ):
        answer = prefill.prefill(arrival("p1", params=KEPT), P_BLOCKS)
        decode.load(arrival("d1", params=dict(answer or {})), D_BLOCKS)

        assert decode.result() is None
        assert decode.holds(D_BLOCKS, seed=1)
        assert prefill.freed.get(timeout=SECONDS) == "p1"


@pytest.mark.parametrize("backend", ["tcp", "shm", "cuda-ipc"])
def test_prefill_pushes_layers_as_the_device_comes_to_them(backend: str) -> None:
    with (
        closing(DeviceCore(backend, "vllm-kvt", "prefill")) as prefill,
        closing(DeviceCore(backend, "vllm-kvt", "decode")) as decode,
    ):
        keep = prefill.connector.plan(arrival("p1", params=KEPT))
        assert isinstance(keep, Keep)
        where: dict[str, Any] = {
            "remote_host": "127.0.0.1",
            "remote_port": prefill.connector.kv_address[1],
            "do_remote_prefill": True,
        }
        # Its pages are still written to by a step of before.
        decode.write(D_BLOCKS, seed=5)
        decode.load(arrival("d1", params=where), D_BLOCKS)
        assert isinstance(prefill.connector, TwoSided)
        pushes = prefill.connector._pushes._pushes
        waiting.wait_until(
            lambda: [push for of_key in pushes.values() for push in of_key if push.began],
            "a push that only waits for pages",
        )
        for layer in range(prefill.layout.layers):
            prefill.launch(layer, P_BLOCKS, seed=1)
            prefill.connector.layer_computed("p1", layer, P_BLOCKS, len(PROMPT))

        assert decode.result() is None
        assert decode.holds(D_BLOCKS[:1], seed=1)
        decode.compute.synchronize()
        assert decode.holds(D_BLOCKS[:1], seed=1)

        prefill.connector.kept("p1", keep, Pages(P_BLOCKS, len(PROMPT)), None, "length")
        assert prefill.freed.get(timeout=SECONDS) == "p1"
