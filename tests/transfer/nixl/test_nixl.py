"""What only the nixl backend can do wrong."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pdgate.transfer.base import Range, Region, State, TransferError
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.nixl import backend as nixl
from pdgate.transfer.nixl import library as nixl_library
from pdgate.transfer.nixl.backend import Agent, NixlBackend, memory_type
from pdgate.transfer.runtime.fleet import Identity, Keyring
from tests.support import waiting
from tests.support.kv_backends import require
from tests.support.kv_owner import Owned, pattern
from tests.support.kv_stand_in import stand_in
from tests.support.told import ROOT

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096
ALL = [Range(0, 0, PAGE)]


@pytest.fixture
def installed() -> None:
    require("nixl")


@pytest.fixture
def ours(installed: None) -> Iterator[NixlBackend]:
    with closing(NixlBackend()) as backend:
        yield backend


@pytest.fixture
def local(ours: NixlBackend) -> Region:
    return ours.allocate(PAGE)


@pytest.mark.slow
def test_who_adopts_its_memory_is_built_as_it_was(ours: NixlBackend) -> None:
    """But for its port."""
    options = {"host": "127.0.0.1", "advertise": "", "plugin": "UCX", "devices": ""}
    delay = nixl_library.PROGRESS_MICROSECONDS

    assert ours.adopter_options() == {**options, "progress_microseconds": delay}
    NixlBackend(**ours.adopter_options()).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "delay"),
    [({}, nixl_library.PROGRESS_MICROSECONDS), ({"progress_microseconds": 250}, 250)],
)
def test_the_progress_thread_of_an_agent_does_not_spin(
    options: dict[str, Any], delay: int, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = nixl_library.load()
    create, delays = api.nixlBind.nixlAgent, []

    def recorded(name: str, configuration: Any) -> Any:
        delays.append(configuration.pthrDelay)
        return create(name, configuration)

    monkeypatch.setattr(api.nixlBind, "nixlAgent", recorded)
    NixlBackend(**options).close()

    assert delays == [delay]
    assert api.nixlBind.nixlAgent is recorded, "other agents of this process are left alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "ucx"),
    [
        ("127.0.0.1", {"engine_config": "NET_DEVICES=lo"}),
        ("localhost", {"engine_config": "NET_DEVICES=lo"}),
        ("0.0.0.0", {}),
    ],
)
def test_on_a_loopback_host_nothing_else_is_listened_on(
    host: str, ucx: dict[str, str], installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    make = nixl_library.agent

    def recorded(api: Any, name: str, plugin: str, settings: Any, delay: int) -> Any:
        asked.append(settings)
        return make(api, name, plugin, settings, delay)

    monkeypatch.setattr(nixl_library, "agent", recorded)
    NixlBackend(host, "127.0.0.1", identity=Identity(Keyring(("s" * 32,)))).close()

    assert asked == [ucx]


@pytest.mark.slow
def test_a_plugin_that_nixl_does_not_have_is_one_line(installed: None) -> None:
    with pytest.raises(OSError, match="nixl did not start SMOKE"):
        NixlBackend(plugin="SMOKE")


def test_devices_are_for_the_plugin_that_takes_them() -> None:
    with pytest.raises(ValueError, match="nixl tells LIBFABRIC no devices"):
        NixlBackend(plugin="LIBFABRIC", devices="mlx5_0:1")


@pytest.mark.parametrize(
    ("place", "described"),
    [("host", ("DRAM", 0)), ("cuda:0", ("VRAM", 0)), ("cuda:3", ("VRAM", 3))],
)
def test_memory_is_described_as_what_it_is(place: str, described: tuple[str, int]) -> None:
    assert memory_type(place) == described


@pytest.mark.slow
def test_memory_that_the_plugin_cannot_move_is_refused_when_it_is_registered(
    ours: NixlBackend,
) -> None:
    with pytest.raises(TransferError, match="nixl, registering memory of cuda:0"):
        ours.register(DeviceMemory("cuda:0", 1 << 30, PAGE))


def test_nobody_looks_in_negative_time() -> None:
    with pytest.raises(ValueError, match="-1"):
        NixlBackend(progress_microseconds=-1)


@pytest.mark.slow
def test_a_transfer_that_was_given_up_settles_with_its_peer(
    ours: NixlBackend, local: Region
) -> None:
    """NIXL cannot cancel, so until the handle has ended the memory is not ours."""
    with Owned("nixl", PAGE) as owner:
        with stand_in(owner) as remote:
            transfer = ours.read(local, remote, ALL, SECONDS)
            assert not transfer.settle(0.5)

            transfer.cancel()
            assert transfer.state is State.CANCELLED
            assert not transfer.settle(0.2)
            owner.kill()
        assert transfer.settle(SECONDS)


@pytest.mark.slow
def test_a_peer_that_failed_is_forgotten(ours: NixlBackend, local: Region) -> None:
    """Disconnected, so that nothing of it lands any more; and what NIXL knew of it goes."""
    assert isinstance(ours._library, Agent)
    with Owned("nixl", PAGE) as lost, stand_in(lost) as remote:
        transfer = ours.read(local, remote, ALL, SECONDS)
        assert not transfer.settle(0.5)
        lost.kill()
        with pytest.raises(TransferError):
            transfer.wait(SECONDS)
    assert not ours._library._met
    assert not ours._library._names

    with Owned("nixl", PAGE) as found:
        for _ in range(2):
            ours.read(local, found.descriptor, ALL, SECONDS).wait(SECONDS)
    assert bytes(local.memory) == pattern(PAGE)


@pytest.mark.slow
def test_of_past_lives_of_a_peer_nothing_is_kept(ours: NixlBackend, local: Region) -> None:
    assert isinstance(ours._library, Agent)
    for _ in range(3):
        with closing(NixlBackend()) as theirs:
            region = theirs.allocate(PAGE)
            ours.read(local, region.descriptor, ALL, SECONDS).wait(SECONDS)

    assert len(ours._library._met) == len(ours._library._names) == len(ours._cards) == 1


@pytest.mark.slow
def test_memory_that_was_registered_later_is_reached_too(ours: NixlBackend, local: Region) -> None:
    """What a peer knows of us is a snapshot; each visit brings it up to date."""
    with closing(NixlBackend()) as theirs:
        theirs.allocate(PAGE)
        for number in (1, 2, 3):
            with closing(theirs.allocate(PAGE)) as region:
                region.memory[:] = bytes([number]) * PAGE
                ours.read(local, region.descriptor, ALL, SECONDS).wait(SECONDS)
            assert bytes(local.memory) == bytes([number]) * PAGE


@pytest.mark.slow
def test_a_notice_that_does_not_come_is_not_waited_for_ever(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl, "NOTICE_SECONDS", 0.05)
    with closing(Agent("NET_DEVICES=lo")) as agent:
        assert not agent.landed(b"never")


@pytest.mark.slow
def test_a_process_ends_well_after_it_used_nixl(installed: None) -> None:
    """With Debian's ibverbs-providers installed it used to crash at its very end."""
    program = "from pdgate.transfer.nixl.backend import NixlBackend\nNixlBackend().close()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(LookupError, match=r"nixl needs .*pip install '\.\[nixl\]'"):
        NixlBackend()
