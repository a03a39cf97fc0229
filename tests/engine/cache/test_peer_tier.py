"""Tiers of other hosts: what comes is the very block that was put there, in time, to members of the fleet; or nothing comes."""

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from pdgate.engine.cache import peer_tier, tier_service
from pdgate.engine.cache import tier_window as window
from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.tier_service import TierService
from pdgate.engine.cache.tier_spec import PeerSpec, TierSpec, peers_of, specs_of
from pdgate.engine.cache.tiers import Tier
from pdgate.transfer import descriptors
from pdgate.transfer.base import Forbidden, Range, StaleDescriptor
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.tcp.backend import TcpBackend
from tests.support.ports import LOOPBACK, free_port
from tests.support.waiting import wait_until

SIZE = 4096
NAMES = [f"{number:064x}" for number in range(1, 6)]
BLOCKS = {name: bytes([number]) * SIZE for number, name in enumerate(NAMES, 1)}
OURS = ("the fleet's secret, long enough",)


def identity(*secrets: str) -> Identity:
    """Of another process than any before."""
    return Identity(Keyring(secrets or OURS), name=fresh_name())


def fresh_name() -> bytes:
    return secrets.token_bytes(16)


class Host:
    """An engine's tiers, served."""

    def __init__(self, closing: ExitStack, folder: Path, who: Identity) -> None:
        self.identity = who
        self.backend = TcpBackend(LOOPBACK, identity=who)
        closing.callback(self.backend.close)
        self.tier = Tier(TierSpec("host", str(folder), 1 << 20))
        for name, pages in BLOCKS.items():
            self.tier.put(name, pages)
        self.service = TierService(
            LOOPBACK, 0, lambda name: self.tier.lend(name, SIZE), SIZE, self.backend, who
        )
        closing.callback(self.service.close)

    @property
    def spec(self) -> PeerSpec:
        return PeerSpec(LOOPBACK, self.service.port, 1 << 20)


class Asker:
    def __init__(self, closing: ExitStack, *specs: PeerSpec, who: Identity | None = None) -> None:
        self.identity = who or identity()
        self.backend = TcpBackend(LOOPBACK, identity=self.identity)
        closing.callback(self.backend.close)
        self.tier = PeerTier(specs, SIZE, self.backend, self.identity)
        closing.enter_context(self.tier.fetching())

    def fetch(self, names: list[str]) -> dict[str, bytes]:
        """What has come, once the request would go on."""
        over = Event()
        if self.tier.fetch(names, over.set):
            assert over.wait(60)
        came = {name: self.tier.take(name) for name in names}
        return {name: pages for name, pages in came.items() if pages is not None}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def host(closing: ExitStack, tmp_path: Path) -> Host:
    return Host(closing, tmp_path / "theirs", identity())


def test_blocks_come_from_another_host_once(closing: ExitStack, host: Host) -> None:
    asker = Asker(closing, host.spec)

    assert asker.fetch(NAMES) == BLOCKS

    assert (asker.tier.counts.hits, asker.tier.counts.lost) == (5, 0)
    assert host.tier.counts.served == 5
    # They are in pages now, and what a request has is not kept twice.
    assert not any(map(asker.tier.has, NAMES))
    # On the same connection.
    assert asker.fetch(NAMES[:2]) == {name: BLOCKS[name] for name in NAMES[:2]}


def test_only_what_lies_before_the_first_that_is_missing_comes(
    closing: ExitStack, host: Host
) -> None:
    asker = Asker(closing, host.spec)

    assert asker.fetch([NAMES[0], "f" * 64, NAMES[1]]) == {NAMES[0]: BLOCKS[NAMES[0]]}
    assert asker.fetch(["f" * 64]) == {}

    # That it has none is no fault of the peer's.
    assert asker.tier.counts.lost == 0


def test_more_than_the_window_comes_in_turns(
    closing: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_service, "WINDOW_BYTES", 8 * SIZE)
    monkeypatch.setattr(peer_tier, "WINDOW_BYTES", 3 * SIZE)
    host = Host(closing, tmp_path / "theirs", identity())

    assert Asker(closing, host.spec).fetch(NAMES) == BLOCKS


def test_no_more_comes_than_may_lie_here(closing: ExitStack, host: Host) -> None:
    spec = PeerSpec(host.spec.host, host.spec.port, 2 * SIZE)

    assert list(Asker(closing, spec).fetch(NAMES)) == NAMES[:2]


def test_what_one_peer_lacks_another_has(closing: ExitStack, host: Host, tmp_path: Path) -> None:
    other = Host(closing, tmp_path / "others", identity())
    other.tier._store.remove(NAMES[1])

    asker = Asker(closing, other.spec, host.spec)

    assert asker.fetch(NAMES) == BLOCKS
    assert (other.tier.counts.served, host.tier.counts.served) == (1, 4)


def test_a_file_that_is_not_whole_there_does_not_come(
    closing: ExitStack, host: Host, tmp_path: Path
) -> None:
    file = tmp_path / "theirs" / NAMES[1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")

    assert list(Asker(closing, host.spec).fetch(NAMES)) == NAMES[:1]

    assert host.tier.counts.broken == 1


LIES: Mapping[str, Callable[[messages.Offered], dict[str, Any]]] = {
    "other digests": lambda offer: {"context": bytes(len(offer.context))},
    "too few digests": lambda offer: {"context": offer.context[:-1]},
    "more than asked for": lambda offer: {
        "tokens": 6,
        "block_ids": list(range(6)),
        "context": bytes(6 * window.DIGEST_BYTES),
    },
    "a slot for two": lambda offer: {"tokens": 5, "block_ids": [0]},
    "nothing": lambda offer: {"tokens": 0, "block_ids": [], "context": b""},
    "slots beyond the window": lambda offer: {"block_ids": [1 << 40] * 5},
    "a shape without shards": lambda offer: {"shape": msgspec.structs.replace(offer.shape, tp=0)},
    "longer blocks": lambda offer: {"shape": msgspec.structs.replace(offer.shape, head_dim=1)},
    "a region that is too short": lambda offer: {
        "descriptors": [{**offer.descriptors[0], "length": 1}]
    },
    "no descriptor": lambda offer: {"descriptors": [{}]},
    "another backend": lambda offer: {"descriptors": [{**offer.descriptors[0], "backend": "shm"}]},
    "a region of another life": lambda offer: {
        "descriptors": [{**offer.descriptors[0], "epoch": descriptors.new_epoch()}]
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_lies_gives_nothing_and_is_left_alone(
    lie: str, closing: ExitStack, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = tier_service._TierReader._offer

    def offer(self: Any, ask: messages.Ask) -> messages.Offered:
        said = honest(self, ask)
        return msgspec.structs.replace(said, **LIES[lie](said))

    monkeypatch.setattr(tier_service._TierReader, "_offer", offer)
    asker = Asker(closing, host.spec)

    assert asker.fetch(NAMES) == {}

    assert asker.tier.counts.lost == 1
    assert asker.tier.counts.broken == (lie == "other digests")
    assert not asker.tier.fetch(NAMES, lambda: None)


def test_who_has_another_secret_gets_nothing(closing: ExitStack, host: Host) -> None:
    stranger = Asker(closing, host.spec, who=identity("another secret, as long as that"))

    assert stranger.fetch(NAMES) == {}

    assert stranger.tier.counts.lost == 1
    assert host.tier.counts.served == 0
    wait_until(lambda: host.identity.refusals.unproven == 1, "that the host has counted it")


def test_without_a_secret_other_hosts_are_not_asked(closing: ExitStack) -> None:
    alone = Identity()
    backend = TcpBackend(LOOPBACK, identity=alone)
    closing.callback(backend.close)

    with pytest.raises(ValueError, match="secret"):
        PeerTier([PeerSpec("10.1.2.3", 7700, SIZE)], SIZE, backend, alone)
    with pytest.raises(ValueError, match="secret"):
        TierService("0.0.0.0", 0, lambda _: None, SIZE, backend, alone)


def test_a_peer_that_says_nothing_costs_one_request_its_patience(
    closing: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tier, "FETCH_SECONDS", 0.3)
    silent = closing.enter_context(socket.create_server((LOOPBACK, 0)))
    asker = Asker(closing, PeerSpec(LOOPBACK, silent.getsockname()[1], 1 << 20))
    over = [Event(), Event()]

    began = time.monotonic()
    assert all(asker.tier.fetch(NAMES, each.set) for each in over)
    assert all(each.wait(60) for each in over)

    assert time.monotonic() - began >= 0.3
    wait_until(lambda: asker.tier.counts.lost == 1, "that the peer is given up")
    assert not asker.tier.fetch(NAMES, lambda: None)


def test_a_request_goes_on_in_time_where_the_thread_is_stuck(
    closing: ExitStack, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a name server that does not answer, which nothing interrupts."""
    monkeypatch.setattr(peer_tier, "FETCH_SECONDS", 0.2)
    asker = Asker(closing, host.spec)
    stuck, over = Event(), Event()

    def blocks(*_: object) -> Iterator[tuple[str, bytes]]:
        assert stuck.wait(60)
        yield from ()

    monkeypatch.setattr(asker.tier._peers[0], "blocks", blocks)

    assert asker.tier.fetch(NAMES, over.set)

    assert over.wait(60)
    assert not stuck.is_set()
    stuck.set()


def test_a_peer_that_is_not_there_is_asked_again_later(
    closing: ExitStack, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    asker = Asker(closing, PeerSpec(LOOPBACK, port, 1 << 20))
    assert asker.fetch(NAMES) == {}
    assert asker.tier.counts.lost == 1

    service = TierService(
        LOOPBACK, port, lambda name: host.tier.lend(name, SIZE), SIZE, host.backend, host.identity
    )
    closing.callback(service.close)
    monkeypatch.setattr(asker.tier._peers[0], "_quiet_until", 0.0)

    assert asker.fetch(NAMES) == BLOCKS


def test_a_peer_that_was_started_again_has_lost_nothing(closing: ExitStack, host: Host) -> None:
    """Its old connection is seen to be gone before it is used."""
    asker = Asker(closing, host.spec)
    assert asker.fetch(NAMES[:1])
    host.service.close()
    again = TierService(
        LOOPBACK,
        host.service.port,
        lambda name: host.tier.lend(name, SIZE),
        SIZE,
        host.backend,
        host.identity,
    )
    closing.callback(again.close)

    assert asker.fetch(NAMES) == BLOCKS
    assert asker.tier.counts.lost == 0


class Speaking:
    """A member of the fleet that says what it likes."""

    def __init__(self, closing: ExitStack, host: Host) -> None:
        who = identity()
        self.backend = TcpBackend(LOOPBACK, identity=who)
        closing.callback(self.backend.close)
        self.region = self.backend.allocate(8 * SIZE)
        self.shape = window.shape(SIZE, 8)
        until = time.monotonic() + 60
        self.peer = closing.enter_context(
            Peer((LOOPBACK, host.service.port), "", until, who, purpose=window.PURPOSE)
        )

    def read(self, offer: messages.Offered, slot: int) -> None:
        """Raises TransferError."""
        there = descriptors.from_data(offer.descriptors[0])
        self.backend.read(self.region, there, [Range(0, slot * SIZE, SIZE)], 60).wait(60)


def test_a_peer_reads_the_slots_that_it_was_offered_until_it_has_released_them(
    closing: ExitStack, host: Host
) -> None:
    speaking = Speaking(closing, host)
    key = window.key_of(NAMES[:2])
    offer = speaking.peer.ask(key, 1, 60, speaking.shape)

    speaking.read(offer, offer.block_ids[0])
    assert bytes(speaking.region.memory[:SIZE]) == BLOCKS[NAMES[0]]
    other = next(slot for slot in range(8) if slot not in offer.block_ids)
    with pytest.raises(Forbidden):
        speaking.read(offer, other)

    assert speaking.peer.release(key, offer.offer_id)
    with pytest.raises(StaleDescriptor):
        speaking.read(offer, offer.block_ids[0])
    assert not speaking.peer.release(key, offer.offer_id)


def test_another_peer_does_not_read_with_anothers_descriptor(
    closing: ExitStack, host: Host
) -> None:
    speaking, other = Speaking(closing, host), Speaking(closing, host)
    offer = speaking.peer.ask(window.key_of(NAMES[:1]), 1, 60, speaking.shape)

    with pytest.raises(StaleDescriptor):
        other.read(offer, offer.block_ids[0])


@pytest.mark.parametrize(
    "key", ["", "../../../etc/passwd", f"{NAMES[0]}  {NAMES[1]}", " ".join(NAMES[:1] * 5000)]
)
def test_what_is_no_name_is_not_looked_for(key: str, closing: ExitStack, host: Host) -> None:
    with pytest.raises(HandOverError, match="hung up"):
        Speaking(closing, host).peer.ask(key, 0, 60, window.shape(SIZE, 8))

    assert host.tier.counts.served == 0


def test_who_reads_all_of_the_window_makes_others_wait_and_who_is_gone_does_not(
    closing: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_service, "WINDOW_BYTES", SIZE)
    host = Host(closing, tmp_path / "theirs", identity())
    greedy, other = Speaking(closing, host), Speaking(closing, host)
    key = window.key_of(NAMES[:1])
    greedy.peer.ask(key, 0, 60, greedy.shape)

    with pytest.raises(HandOverError, match="full"):
        other.peer.ask(key, 0, 60, other.shape)
    greedy.peer.channel.close()

    assert other.peer.ask(key, 60, 60, other.shape).tokens == 1


def test_peers_are_named_by_host_and_port() -> None:
    words = ["peer=10.0.0.2:7700:64", "disk=/a:2", "peer=[fd00::1]:7701:1"]

    assert peers_of(words) == [
        PeerSpec("10.0.0.2", 7700, 64 << 20),
        PeerSpec("fd00::1", 7701, 1 << 20),
    ]
    assert [spec.medium for spec in specs_of(words)] == ["disk"]
    with pytest.raises(ValueError, match="once"):
        peers_of(["peer=a:1:2", "peer=a:1:3"])


@pytest.mark.parametrize("word", ["peer=:1:2", "peer=a:2", "peer=a:0:2", "peer=a b:1:2"])
def test_what_is_no_peer_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="not"):
        peers_of([word])
