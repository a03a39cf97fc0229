"""What the mooncake backend passes on to Mooncake, and what it refuses before."""

import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pdgate.transfer.base import Range, TransferError
from pdgate.transfer.mooncake import engine as mooncake_engine
from pdgate.transfer.mooncake.backend import MooncakeBackend, MooncakeEngines
from tests.support import mooncake_metadata, waiting
from tests.support.kv_backends import require
from tests.support.kv_owner import pattern

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with two RDMA devices, as far as we look."""
    for name in ("mlx5_0", "mlx5_1"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(mooncake_engine, "RDMA_DEVICES", tmp_path)
    return tmp_path


class Recorded:
    """Mooncake's engine, as far as it is started here."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    def initialize(self, *words: Any) -> int:
        self.asked.append(words)
        return 0

    def get_rpc_port(self) -> int:
        return 15000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What engines are started with."""
    Recorded.asked.clear()
    library = SimpleNamespace(TransferEngine=Recorded)
    monkeypatch.setitem(sys.modules, "mooncake.engine", library)
    monkeypatch.setitem(sys.modules, "mooncake", SimpleNamespace(engine=library))
    for name in ("MC_FORCE_TCP", "MC_TCP_BIND_ADDRESS"):
        # Set and then deleted, so that what the code sets is gone afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return Recorded.asked


def started(**settings: Any) -> bytes:
    """The name that peers use."""
    make = mooncake_engine.maker("127.0.0.1", mooncake_engine.MooncakeSettings(**settings))
    return make().segment


def test_rdma_and_its_devices_are_passed_on(asked: list[tuple[Any, ...]], devices: Path) -> None:
    assert started(protocol="rdma", device_name="mlx5_1,mlx5_0") == b"127.0.0.1:15000"

    assert asked == [("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_1,mlx5_0")]


def test_every_engine_has_a_name_of_its_own_on_a_metadata_server(
    asked: list[tuple[Any, ...]],
) -> None:
    """One process has two: one that peers reach and one that moves."""
    names = {started(metadata_server="etcd://10.0.0.9:2379") for _ in range(2)}

    assert len(names) == 2
    assert names == {said[0].encode() for said in asked}
    assert {said[1] for said in asked} == {"etcd://10.0.0.9:2379"}


def test_without_a_device_rdma_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mooncake would take TCP instead and not say so."""
    monkeypatch.setattr(mooncake_engine, "RDMA_DEVICES", tmp_path / "none")

    with pytest.raises(OSError, match="rdma needs an RDMA device, and this machine has none"):
        MooncakeBackend(protocol="rdma")


def test_a_device_that_is_not_there_is_named_beside_those_that_are(devices: Path) -> None:
    with pytest.raises(OSError, match="no RDMA device mlx4_0; there is mlx5_0, mlx5_1"):
        MooncakeBackend(protocol="rdma", device_name="mlx5_1, mlx4_0")


def test_another_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="'udp'"):
        MooncakeBackend(protocol="udp")


@pytest.mark.slow
def test_engines_find_each_other_by_a_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    require("mooncake")
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    with (
        mooncake_metadata.running() as url,
        closing(MooncakeBackend(metadata_server=url)) as ours,
        closing(MooncakeBackend(metadata_server=url)) as theirs,
    ):
        local, remote = ours.allocate(PAGE), theirs.allocate(PAGE)
        local.memory[:] = pattern(PAGE)

        ours.write(local, remote.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)

        assert remote.memory == local.memory


def test_who_adopts_its_memory_is_built_as_it_was(
    asked: list[tuple[Any, ...]], devices: Path
) -> None:
    """But for its port."""
    with closing(
        MooncakeBackend(protocol="rdma", device_name="mlx5_0", advertise="10.0.0.1")
    ) as one:
        MooncakeBackend(**one.adopter_options()).close()

    assert len(asked) == 2
    assert asked[0][1:] == asked[1][1:]


def test_a_devices_memory_goes_by_rdma_alone() -> None:
    """By tcp the library would copy from an address that means nothing to the host."""
    registered: list[tuple[int, int]] = []
    engine: Any = SimpleNamespace(
        segment=b"", register=lambda address, length: registered.append((address, length))
    )
    with pytest.raises(TransferError, match="reaches memory of cuda:0 by rdma alone"):
        MooncakeEngines(lambda: engine).register_on("cuda:0", 4096, 64)

    MooncakeEngines(lambda: engine, reaches_devices=True).register_on("cuda:0", 4096, 64)
    assert registered == [(4096, 64)]
