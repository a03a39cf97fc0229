"""A hand-over between two devices: what is sent, offered, counted and used again waits for its event.

test_waits.py takes each wait away and sees one of these fail.
"""

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pdgate.transfer.messenger import incoming
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.plan.layout import LayoutOrder
from tests.support.kv_layouts import PLAIN
from tests.transfer.device.nodes import DeviceNode
from tests.transfer.messenger.nodes import SECONDS, Node

TOKENS = 26
MODES: dict[str, dict[str, Any]] = {
    "pull": {"push": False},
    "push after prefill": {"by_layer": False},
    "push by layer": {},
}
HND = replace(PLAIN, stages=(3,), head_dim=2)
SPLIT = replace(HND, tp=2, stages=(1, 2)), replace(HND, order=LayoutOrder.NHD, block_tokens=8, tp=4)
BACKENDS = ["tcp", "shm", "cuda-ipc"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a prompt takes several, of which the last is not full."""
    monkeypatch.setattr(incoming, "TILE_TOKENS", 8)


def hand_over(backend: str, mode: dict[str, Any]) -> None:
    """Prefill computes in chunks; nothing of it has happened when it is told to the messenger."""
    with (
        closing(DeviceNode(backend, HND, 0)) as prefill,
        closing(DeviceNode(backend, HND, 1)) as decode,
    ):
        content = prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, skip=1, **mode)
        for tokens in (7, 19, TOKENS):
            prefill.computed("k", tokens)
        prefill.kept("k", TOKENS)

        assert decode.result() is None
        assert decode.holds("k", content, 1)
        assert prefill.freed.get(timeout=SECONDS) == "k"
        assert prefill.used == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_what_is_handed_over_is_what_the_stream_has_written(
    backend: str, mode: dict[str, Any]
) -> None:
    hand_over(backend, mode)


def at_once(backend: str, *, offered: bool) -> None:
    """Prefill runs ahead of its device by the whole prompt."""
    with (
        closing(DeviceNode(backend, HND, 0)) as prefill,
        closing(DeviceNode(backend, HND, 1)) as decode,
    ):
        content = prefill.kept_at_once("k", TOKENS, offered=offered)
        decode.load("k", prefill.port, TOKENS, push=not offered, by_layer=False)

        assert decode.result() is None
        assert decode.holds("k", content)


@pytest.mark.parametrize("offered", [True, False], ids=["pull", "push"])
def test_a_prompt_whose_last_step_has_not_happened_is_not_handed_over_before(
    offered: bool,
) -> None:
    at_once("shm", offered=offered)


def behind_a_step(backend: str, mode: dict[str, Any]) -> None:
    """Decode's pages are still being written by its step of before."""
    with (
        closing(DeviceNode(backend, HND, 0)) as prefill,
        closing(DeviceNode(backend, HND, 1)) as decode,
    ):
        content = prefill.expect("k", TOKENS)
        prefill.computed("k", TOKENS)
        prefill.kept("k", TOKENS)
        decode.load_behind("k", prefill.port, TOKENS, **mode)

        assert decode.result() is None
        decode.compute.synchronize()
        decode.look()
        assert decode.has("k", content)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_pages_are_filled_after_the_last_step_that_used_them(mode: dict[str, Any]) -> None:
    behind_a_step("shm", mode)


@pytest.mark.parametrize(
    ("backend", "mode"), [("tcp", "push by layer"), ("shm", "pull"), ("cuda-ipc", "push by layer")]
)
def test_ranks_and_layouts_that_differ_meet_on_devices_too(backend: str, mode: str) -> None:
    mine, its = replace(SPLIT[0], order=LayoutOrder.HND), replace(SPLIT[1], order=LayoutOrder.HND)
    with (
        closing(DeviceNode(backend, mine, 0)) as prefill,
        closing(DeviceNode(backend, its, 1)) as decode,
    ):
        content = prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, **MODES[mode])
        prefill.computed("k", TOKENS)
        prefill.kept("k", TOKENS)

        assert decode.result() is None
        assert decode.holds("k", content)


@pytest.mark.parametrize("backend", ["tcp", "shm"])
def test_a_device_and_a_host_hand_over_to_each_other(backend: str) -> None:
    with (
        closing(DeviceNode(backend, HND, 0)) as device,
        closing(Node(backend, HND)) as host,
    ):
        content = device.expect("k", TOKENS)
        host.load("k", device.port, TOKENS)
        device.computed("k", TOKENS)
        device.kept("k", TOKENS)
        assert host.result() is None
        assert host.holds("k", content)

        content = host.expect("back", TOKENS)
        host.computed("back", TOKENS)
        host.kept("back", TOKENS)
        device.load("back", host.port, TOKENS, push=False)
        assert device.result() is None
        assert device.has("back", content)


def test_a_pair_that_cannot_is_refused_when_they_meet_with_both_sides_names() -> None:
    with (
        closing(DeviceNode("cuda-ipc", HND, 0)) as device,
        closing(Node("cuda-ipc", HND)) as host,
    ):
        device.expect("k", TOKENS)
        host.load("k", device.port, TOKENS)
        error = host.result()
        assert error is not None
        assert "fake:0 here, host there" in error

        device.expect("pulled", TOKENS)
        device.computed("pulled", TOKENS)
        device.kept("pulled", TOKENS)
        host.load("pulled", device.port, TOKENS, push=False)
        error = host.result()
        assert error is not None
        assert "host here, fake:0 there" in error


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_device_that_is_lost_fails_the_hand_over_by_name(mode: dict[str, Any]) -> None:
    with (
        closing(DeviceNode("shm", HND, 0)) as prefill,
        closing(DeviceNode("shm", HND, 1)) as decode,
    ):
        prefill.expect("k", TOKENS)
        prefill.computed("k", TOKENS)
        prefill.device.lose()
        # Before decode asks: its push fails as well, and takes the pages away.
        with pytest.raises(Exception, match="fake:0 is lost"):
            prefill.kept("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, **mode)
        prefill.pushes.drop("k", "fake:0 is lost")
        prefill.offers.drop("k", "fake:0 is lost")

        error = decode.result()
        assert error is not None
        assert "fake:0 is lost" in error
        assert decode.used == 0


def given_up(backend: str, mode: dict[str, Any], seed: int) -> None:
    """Cancelled at a random moment: no page is written afterwards, and none is left in use."""
    chance = random.Random(seed)
    with (
        closing(DeviceNode(backend, HND, 0)) as prefill,
        closing(DeviceNode(backend, HND, 1, patience=Patience(ping=0.05))) as decode,
    ):
        prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, **mode)
        steps: list[Callable[[], None]] = [
            lambda: prefill.computed("k", 7),
            lambda: prefill.computed("k", TOKENS),
            lambda: prefill.kept("k", TOKENS),
        ]
        for step in steps[: chance.randrange(4)]:
            step()
        if chance.random() < 0.5:
            decode.loads.cancel("k")
        else:
            # As engines do, in this order.
            read = prefill.offers.drop("k", "preempted").in_use
            if prefill.pushes.drop("k", "preempted") or read:
                assert prefill.freed.get(timeout=SECONDS) == "k"
            else:
                prefill.give_back("k")
        error = decode.result()
        if error is None:
            return
        landed = decode.device.now(decode.memories[0])
        prefill.compute.synchronize()
        assert decode.device.idle
        assert decode.device.now(decode.memories[0]) == landed
        assert decode.used == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_after_a_cancel_or_a_preemption_nothing_is_written_any_more(
    backend: str, seed: int
) -> None:
    given_up(backend, MODES[random.Random(seed).choice(list(MODES))], seed)
