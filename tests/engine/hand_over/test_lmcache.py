"""LMCache's PD backend: prefill pushes to decode and notifies the gateway, and decode answers from what came."""

import queue
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq

from pdgate.engine.hand_over import pushed_blocks
from pdgate.engine.hand_over.lmcache import LMCacheHandOver
from pdgate.engine.hand_over.pushed_blocks import PURPOSE, PushedBlocks, push
from pdgate.engine.request import Request
from pdgate.protocols.dialects.lmcache import push_to
from pdgate.protocols.instance import Instance, Role
from pdgate.transfer import registry
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity
from tests.support.core_pairs import Side, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.ports import LOOPBACK
from tests.support.waiting import PATIENCE_SECONDS

TEXT = "my own prompt, which is exactly as long as the foreign one"
FOREIGN = "what someone else asked, which is as long as my own prompt"
ONE = replace(GREEDY, max_tokens=1)
BLOCK = 16


class Proxy:
    """The gateway's socket."""

    def __init__(self) -> None:
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        port = self._pull.bind_to_random_port(f"tcp://{LOOPBACK}")
        self.address = f"{LOOPBACK}:{port}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def next(self) -> dict[str, Any]:
        return self.said.get(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._pull.close()
        self._context.term()

    def _hear(self) -> None:
        while not self._over.is_set():
            if self._pull.poll(50):
                self.said.put(msgspec.msgpack.decode(self._pull.recv()))


class Fleet:
    def __init__(self, stack: ExitStack) -> None:
        self.proxy = Proxy()
        stack.callback(self.proxy.close)
        sides = []
        for role in ("prefill", "decode"):
            backend = registry.load("shm")
            stack.callback(backend.close)
            sides.append(side(stack, role, "lmcache", backend, layout(), peer=self.proxy.address))
        self.p: Side = sides[0]
        self.d: Side = sides[1]

    def to_prefill(self, text: str = TEXT, id: str = "p1") -> Request:
        at = Instance("d", "http://d", Role.DECODE, "lmcache", kv=f"{LOOPBACK}:{self.d.port}")
        return replace(ask(id, text, ONE), params=dict(push_to(at, "w1")))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture(scope="module")
def right() -> list[int]:
    alone = engine()
    alone.core.start()
    tokens = alone.tokens(ask("alone", TEXT, GREEDY))
    alone.core.stop()
    return tokens


def test_decode_answers_from_what_was_pushed(fleet: Fleet, right: list[int]) -> None:
    fleet.p.engine.answer(fleet.to_prefill())
    assert fleet.proxy.next() == {"type": "ProxyNotif", "req_id": "w1"}

    answer = fleet.d.engine.answer(ask("d1", TEXT, GREEDY))

    assert tokens_of(answer) == right
    prompt = len(ask("", TEXT).prompt)
    assert fleet.d.stats.prompts_from_peer == prompt // BLOCK * BLOCK
    assert fleet.d.stats.prompts_computed == prompt % BLOCK
    assert fleet.p.connector.counters.sent == fleet.d.connector.counters.transfers == 1
    assert fleet.p.used() == fleet.d.used() == 0


def test_foreign_kv_under_a_prompts_names_changes_the_answer(
    fleet: Fleet, right: list[int]
) -> None:
    """The negative control: it is this KV that decode answers from."""
    pushing = fleet.p.connector
    assert isinstance(pushing, LMCacheHandOver)
    names = pushing._blocks.names(ask("", TEXT).prompt, None)
    pushing._blocks.names = lambda prompt, salt: names  # type: ignore[method-assign]
    fleet.p.engine.answer(fleet.to_prefill(FOREIGN))
    fleet.proxy.next()

    assert tokens_of(fleet.d.engine.answer(ask("d1", TEXT, GREEDY))) != right
    assert fleet.d.connector.counters.transfers == 1


def test_another_prompt_and_another_salt_find_nothing(fleet: Fleet, right: list[int]) -> None:
    fleet.p.engine.answer(fleet.to_prefill(FOREIGN))
    fleet.proxy.next()

    assert tokens_of(fleet.d.engine.answer(ask("d1", TEXT, GREEDY))) == right
    fleet.d.engine.answer(replace(ask("d2", FOREIGN, GREEDY), body={"cache_salt": "tenant"}))
    assert fleet.d.connector.counters.transfers == 0


def test_a_push_that_fails_notifies_nobody_and_frees_the_pages(fleet: Fleet) -> None:
    asked = fleet.to_prefill()
    fleet.d.connector.close()

    fleet.p.engine.answer(asked)

    assert fleet.p.used() == 0
    fleet.p.connector.close()
    assert fleet.p.connector.counters.sends_failed == 1
    assert fleet.proxy.said.empty()


@pytest.mark.parametrize(
    "spec",
    [
        "here",
        {"req_id": "w", "receiver_host": "h"},
        {"req_id": "w", "receiver_host": "h", "receiver_init_port": 7300},
        {"req_id": "w", "receiver_host": "h", "receiver_init_port": [0]},
        {"receiver_host": "h", "receiver_init_port": [7300]},
    ],
)
def test_a_bad_spec_fails_one_request(fleet: Fleet, spec: object) -> None:
    last = fleet.p.engine.answer(replace(ask("bad", TEXT, ONE), params={"disagg_spec": spec}))[-1]

    assert last.refusal is not None
    assert last.refusal.blame_client


def test_a_decode_engine_pushes_to_nobody(fleet: Fleet) -> None:
    last = fleet.d.engine.answer(fleet.to_prefill())[-1]

    assert last.refusal is not None
    assert "role is decode" in last.refusal.message


@pytest.fixture
def pushed() -> Iterator[PushedBlocks]:
    made = PushedBlocks(LOOPBACK, 0, Identity(), 8)
    yield made
    made.close()


def name(letter: str) -> str:
    return letter * 64


def test_the_oldest_go_when_there_are_too_many(
    pushed: PushedBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed_blocks, "MOST_BYTES", 16)
    at = (LOOPBACK, pushed.port)
    push(at, Identity(), [(name("a"), b"a" * 8), (name("b"), b"b" * 8)])
    assert pushed.find(name("a")) == b"a" * 8

    push(at, Identity(), [(name("c"), b"c" * 8)])

    assert [pushed.find(name(each)) is not None for each in "abc"] == [True, False, True]


def test_a_block_of_another_shape_is_not_taken(pushed: PushedBlocks) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        push((LOOPBACK, pushed.port), Identity(), [(name("a"), b"longer than 8")])

    assert pushed.find(name("a")) is None


def test_half_a_block_is_none(pushed: PushedBlocks) -> None:
    with dial((LOOPBACK, pushed.port), Identity(), PURPOSE, PATIENCE_SECONDS) as channel:
        channel.sock.sendall(struct.pack("<I", 72) + name("a").encode())

    push((LOOPBACK, pushed.port), Identity(), [(name("b"), b"b" * 8)])
    assert pushed.find(name("a")) is None
    assert pushed.find(name("b")) == b"b" * 8
