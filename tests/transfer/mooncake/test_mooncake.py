"""What only the mooncake backend can do wrong."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pdgate.transfer.base import Op, PeerLost, Range, State, TransferError
from pdgate.transfer.external_mover.library import Move, Piece
from pdgate.transfer.mooncake import engine as mooncake_engine
from pdgate.transfer.mooncake.backend import MooncakeBackend, MooncakeEngines
from tests.support import waiting
from tests.support.kv_backends import require
from tests.support.kv_owner import Owned
from tests.support.kv_stand_in import stand_in
from tests.support.processes import child

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096
BIG = 4 << 20


@pytest.fixture
def installed() -> None:
    require("mooncake")


@pytest.fixture
def engines(installed: None) -> Iterator[tuple[MooncakeEngines, MooncakeEngines]]:
    make = mooncake_engine.maker("127.0.0.1", mooncake_engine.MooncakeSettings())
    with closing(MooncakeEngines(make)) as ours, closing(MooncakeEngines(make)) as theirs:
        yield ours, theirs


class Buffer:
    def __init__(self, length: int, fill: bytes = b"\0") -> None:
        self.memory = ctypes.create_string_buffer(fill * length, length)
        self.base = ctypes.addressof(self.memory)


def reading(card: bytes, pieces: list[Piece]) -> Move:
    return Move(Op.READ, card, pieces, None, lambda: False)


@pytest.mark.slow
def test_a_failed_call_moves_nothing_once_it_has_returned(
    engines: tuple[MooncakeEngines, MooncakeEngines],
) -> None:
    """Mooncake returns at the first piece that failed, and goes on with the others."""
    ours, theirs = engines
    count = 64
    source, target = Buffer(count * BIG, b"x"), Buffer(count * BIG)
    theirs.register(source.base, count * BIG)
    ours.register(target.base, count * BIG)
    pieces = [Piece(target.base + i * BIG, source.base + i * BIG, BIG) for i in range(count)]
    foreign = pieces[0]._replace(remote=source.base + count * BIG + (1 << 30))

    with pytest.raises(TransferError, match="failed"):
        ours.move(reading(theirs.card(), [foreign, *pieces[1:]]))
    landed = target.memory.raw.count(b"x")
    assert landed < (count - 1) * BIG

    # As much again, by the engine that took over, is time enough for the rest to land.
    again = Buffer(count * BIG)
    ours.register(again.base, count * BIG)
    ours.move(
        reading(
            theirs.card(),
            [one._replace(local=again.base + i * BIG) for i, one in enumerate(pieces)],
        )
    )

    assert again.memory.raw == source.memory.raw
    assert target.memory.raw.count(b"x") == landed


@pytest.mark.slow
def test_many_threads_do_not_overflow_the_queue_of_a_peer(
    engines: tuple[MooncakeEngines, MooncakeEngines],
) -> None:
    """2,700 pieces at once made the call fail, and those after it."""
    ours, theirs = engines
    count, threads = 1500, 8
    source, target = Buffer(count * PAGE, b"x"), Buffer(threads * count * 64)
    theirs.register(source.base, count * PAGE)
    ours.register(target.base, threads * count * 64)
    errors: list[TransferError] = []

    def move(number: int) -> None:
        start = target.base + number * count * 64
        pieces = [Piece(start + i * 64, source.base + i * PAGE, 64) for i in range(count)]
        try:
            ours.move(reading(theirs.card(), pieces))
        except TransferError as error:
            errors.append(error)

    running = [threading.Thread(target=move, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(SECONDS)

    assert errors == []
    assert target.memory.raw == b"x" * len(target.memory)


@pytest.mark.slow
def test_a_transfer_that_was_given_up_settles_with_its_peer(installed: None) -> None:
    """Mooncake waits for a hung peer, and until it has ended the memory is not ours."""
    with (
        closing(MooncakeBackend()) as ours,
        Owned("mooncake", PAGE) as owner,
        stand_in(owner) as remote,
    ):
        local = ours.allocate(PAGE)
        transfer = ours.read(local, remote, [Range(0, 0, PAGE)], SECONDS)
        assert not transfer.settle(0.5)

        transfer.cancel()
        assert transfer.state is State.CANCELLED
        assert not transfer.settle(0.2)
        owner.kill()

        assert transfer.settle(SECONDS)


@pytest.mark.slow
def test_others_are_reached_after_a_peer_died_under_a_call(installed: None) -> None:
    with (
        closing(MooncakeBackend()) as ours,
        Owned("mooncake", PAGE) as healthy,
        Owned("mooncake", PAGE) as dying,
    ):
        local = ours.allocate(PAGE)
        with stand_in(dying) as remote:
            transfer = ours.read(local, remote, [Range(0, 0, PAGE)], SECONDS)
            dying.kill()
            with pytest.raises((PeerLost, TransferError)):
                transfer.wait(SECONDS)

        ours.read(local, healthy.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("mooncake", "mooncake.engine"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(LookupError, match=r"mooncake needs .*pip install '\.\[mooncake\]'"):
        MooncakeBackend()


def test_without_the_rdma_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("mooncake", "mooncake.engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text("raise ImportError('libibverbs.so.1: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)

    try:
        with pytest.raises(LookupError, match=r"libibverbs\.so\.1.*apt-get install libibverbs1"):
            MooncakeBackend()
    finally:
        for name in ("mooncake", "mooncake.engine"):
            sys.modules.pop(name, None)


@pytest.mark.slow
def test_an_engine_without_the_package_ends_with_that_line(tmp_path: Path) -> None:
    (tmp_path / "mooncake.py").write_text("")
    words = [*("engine", "--port", "0", "--role", "prefill"), *("--transfer", "mooncake")]
    command = [sys.executable, "-m", "pdgate", *words, "--pdd-protocol", "vllm-mooncake"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    with child(command, env={"PYTHONPATH": path}, name="engine") as engine:
        assert engine.wait_for_end() == 1
        assert "the engine could not start: transfer backend mooncake needs" in engine.tail()
        assert "Traceback" not in engine.tail()
