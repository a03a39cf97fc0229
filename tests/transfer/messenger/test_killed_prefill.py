"""A prefill engine whose pages are read is killed, frozen or restarted; and one whose pages
come late. (test_killed_peers.py has the pushes that it is killed in.)

What D has read is only taken if P confirms that it held it, and P's dead cannot.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pdgate.transfer.base import Transfer
from pdgate.transfer.messenger import peer
from tests.support.kv_layouts import PLAIN
from tests.support.kv_memory_kinds import HOST
from tests.support.kv_ranks import cache
from tests.transfer.device.nodes import DeviceNode
from tests.transfer.messenger.conftest import EVERYWHERE, IMPATIENT, tiles
from tests.transfer.messenger.node_process import NodeProcess
from tests.transfer.messenger.nodes import SECONDS, Node
from tests.transfer.messenger.watched import Prefill

pytestmark = [pytest.mark.slow, EVERYWHERE]

TOKENS = 10


@pytest.fixture
def prefill(backend: str) -> Iterator[NodeProcess]:
    with NodeProcess(backend) as process:
        yield process


@pytest.fixture
def decode(backend: str, kind: str) -> Iterator[Node]:
    made: Node
    if kind == HOST:
        made = Node(backend, PLAIN, patience=IMPATIENT)
    else:
        made = DeviceNode(backend, PLAIN, 1, patience=IMPATIENT)
    with closing(made) as node:
        yield node


def before_reading(node: Node, act: Callable[[], None]) -> None:
    read = node.backend.read

    def late(*words: Any, **more: Any) -> Any:
        act()
        return read(*words, **more)

    node.backend.read = late  # type: ignore[method-assign]


def failed(node: Node) -> str:
    """How the load ended; it had all its pages back."""
    error = node.result()
    assert error is not None
    assert (node.used, node.counters.stranded) == (0, 0)
    return error


def test_while_decode_waits_for_the_offer(prefill: NodeProcess, decode: Node) -> None:
    prefill.do("expect", "k", TOKENS)
    decode.load("k", prefill.port, TOKENS, push=False)
    prefill.kill()

    assert failed(decode).startswith("broken peer")


def test_while_decode_reads(prefill: NodeProcess, decode: Node) -> None:
    """Over shared memory the read itself may still go well."""
    before_reading(decode, prefill.kill)
    prefill.do("expect", "k", TOKENS)
    prefill.do("kept", "k", TOKENS)

    decode.load("k", prefill.port, TOKENS, push=False)

    failed(decode)


def test_frozen_while_decode_reads(
    prefill: NodeProcess, decode: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may go on and use the pages for another request: what was read does not count."""
    monkeypatch.setattr(peer, "ANSWER_SECONDS", 0.5)
    read = decode.backend.read

    def read_and_freeze(*words: Any) -> Transfer:
        transfer = read(*words)
        transfer.wait(SECONDS)
        prefill.freeze()
        return transfer

    decode.backend.read = read_and_freeze  # type: ignore[method-assign, assignment]
    prefill.do("expect", "k", TOKENS)
    prefill.do("kept", "k", TOKENS)

    decode.load("k", prefill.port, TOKENS, push=False)

    assert failed(decode).startswith("broken peer")


def test_another_life_at_the_same_address_is_not_read_for_the_first(
    prefill: NodeProcess, decode: Node, backend: str
) -> None:
    """It has the same key, blocks of the same numbers, and other bytes in them."""
    content = cache(PLAIN, TOKENS)
    with ExitStack() as stack:
        lives: list[NodeProcess] = []

        def restart() -> None:
            prefill.kill()
            second = stack.enter_context(NodeProcess(backend, prefill.port))
            second.do("expect", "k", TOKENS)
            second.do("kept", "k", TOKENS)
            lives.append(second)
            decode.backend.read = read  # type: ignore[method-assign]

        read = decode.backend.read
        before_reading(decode, restart)
        prefill.do("expect", "k", TOKENS)
        prefill.do("kept", "k", TOKENS)
        decode.load("k", prefill.port, TOKENS, push=False)
        failed(decode)

        (second,) = lives
        second.do("expect", "k2", TOKENS)
        second.do("kept", "k2", TOKENS)
        decode.load("k2", second.port, TOKENS, push=False)
        assert decode.result() is None
        assert decode.holds("k2", content)


def test_a_late_write_lands_in_quarantined_pages_only(prefill: NodeProcess, decode: Node) -> None:
    """The next request gets others, and those are given back when nothing can come any more."""
    landed = tiles(decode)
    prefill.do("expect", "k", TOKENS)
    decode.load("k", prefill.port, TOKENS)
    prefill.do("computed", "k", TOKENS, 0)
    landed.get(timeout=SECONDS)
    prefill.freeze_mover()
    prefill.do("computed", "k", TOKENS, *range(1, PLAIN.layers))
    decode.loads.cancel("k")
    name, error = decode.given_up.get(timeout=SECONDS)
    assert (name, error) == ("k", "cancelled: nobody waits for it")
    quarantined = set(decode.blocks["k"])
    assert decode.used == decode.counters.stranded == len(quarantined)

    decode.take("next", TOKENS)
    assert not quarantined & set(decode.blocks["next"])
    prefill.thaw_mover()

    assert decode.result() == "cancelled"
    assert decode.written() <= quarantined
    assert decode.used == len(decode.blocks["next"])
    prefill.do("kept", "k", TOKENS)
    prefill.do("over")
    assert prefill.do("used") == "0"


@pytest.mark.parametrize(
    ("mode", "said", "wait_seconds"),
    [("push", "taken key", SECONDS), ("pull", "unknown key", 0.1)],
)
def test_a_key_that_is_being_handed_over_is_nobody_elses(
    backend: str, decode: Node, mode: str, said: str, wait_seconds: float
) -> None:
    """Nor does the second, who is refused, take it from the first by giving up.

    A push is refused; a pull waits in vain.
    """
    with closing(Prefill(backend, PLAIN)) as prefill, closing(Node(backend, PLAIN)) as second:
        content = prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS)
        prefill.until("begun")
        prefill.computed("k", TOKENS, [0])

        second.load("k", prefill.port, TOKENS, push=mode == "push", wait_seconds=wait_seconds)
        assert failed(second).startswith(said)

        prefill.computed("k", TOKENS, [1])
        prefill.kept("k", TOKENS)
        assert decode.result() is None
        assert decode.holds("k", content)
