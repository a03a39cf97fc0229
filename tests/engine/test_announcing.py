"""What an engine says of itself in a directory."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pdgate.cluster.member import read
from pdgate.cluster.read_only import CannotAnnounce
from pdgate.engine.announcing import announcement, member
from pdgate.engine.roles import EngineRoles
from pdgate.engine.settings import EngineSettings
from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from tests.support.engine_cores import engine, layout
from tests.support.fake_connector import FakeConnector, Meeting

ETCD = "http://10.0.0.9:2379"
HERE = EngineSettings(host="10.0.0.1", etcd=ETCD)


def connector(host: str) -> FakeConnector:
    made = engine()
    fake = FakeConnector(made.core, made.memory, Meeting(layout()))
    fake.kv_address = (host, 5600)
    return fake


def test_a_gateway_can_read_what_it_needs() -> None:
    settings = EngineSettings(
        host="10.0.0.1", role="decode", protocol="vllm-nixl", block_tokens=32, etcd=ETCD
    )

    said = member(settings, 8200, connector("10.0.0.1"), ("tiny",))

    assert read(said.key, said.value()) == said
    assert said.key == "/workers/decode/10.0.0.1/8200"
    assert (said.protocol, said.model, said.kv) == ("vllm-nixl", "tiny", "10.0.0.1:5600")
    assert (said.block_tokens, said.tp, said.takes_calls) == (32, 1, True)


def test_each_process_has_an_epoch_of_its_own() -> None:
    one, other = (member(HERE, 80, None, ("m",)) for _ in range(2))

    assert one.epoch != other.epoch
    assert dataclasses.replace(one, epoch=other.epoch) == other


@pytest.mark.parametrize("names", [("a", "b"), ("*",)])
def test_an_engine_of_several_names_is_to_be_asked(names: tuple[str, ...]) -> None:
    """The gateway would send it calls of a single one otherwise."""
    assert member(HERE, 80, None, names).model == ""


@pytest.mark.parametrize("kv_host", ["0.0.0.0", "::", "", "10.0.0.1"])
def test_wildcards_are_announced_as_what_others_dial(kv_host: str) -> None:
    settings = EngineSettings(host="0.0.0.0", advertise_host="fd00::7", etcd=ETCD)

    assert member(settings, 80, None, ("m",)).url == "http://[fd00::7]:80"
    kv = member(settings, 80, connector(kv_host), ("m",)).kv
    assert kv == ("10.0.0.1:5600" if kv_host == "10.0.0.1" else "[fd00::7]:5600")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"etcd": "10.0.0.9:2379"}, "not a URL"),
        ({"etcd": ETCD, "host": "0.0.0.0"}, "nobody can dial"),
        ({"etcd": ETCD, "advertise_host": "a/b"}, "not a host"),
        ({"directory": "redis", "host": "0.0.0.0"}, "nobody can dial"),
        ({"directory": "redis", "etcd": ETCD}, "not etcd and 'redis'"),
        ({"directory_options": ("url=redis://h",)}, "without a directory"),
    ],
    ids=str,
)
def test_what_nobody_could_dial_is_refused_at_the_start(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        EngineSettings(**settings)


def test_where_nobody_can_announce_itself_no_engine_starts(tmp_path: Path) -> None:
    options = (f"path={tmp_path / 'engines.toml'}",)
    settings = EngineSettings(directory="file", directory_options=options)

    with pytest.raises(CannotAnnounce, match=r"/workers/plain/127\.0\.0\.1/80"):
        announcement(settings, 80, None, ("m",), EngineRoles(Role.PLAIN))


def test_where_an_engine_runs_is_said(tmp_path: Path) -> None:
    said = member(dataclasses.replace(HERE, place=Place("h", "r", "z")), 80, None, ("m",))

    assert read(said.key, said.value()).instance().place == Place("h", "r", "z")
