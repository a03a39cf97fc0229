"""Secrets of a fleet: where they come from, how they change, and what is refused without."""

import logging
import os
import secrets
from contextlib import closing
from pathlib import Path

import pytest

from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.runtime.handshake import Unproven
from pdgate.transfer.tcp.backend import TcpBackend
from pdgate.transfer.tcp.owner import PURPOSE as TCP
from tests.support.fake_core import SECONDS
from tests.support.kv_strangers import SECRET, member


def test_beyond_loopback_a_listener_needs_a_secret() -> None:
    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(ValueError, match="--kv-secret-file"):
            TcpBackend(host)
        with pytest.raises(ValueError, match="--kv-secret-file"):
            fleet.listening("it", host, 0, Identity())
    with closing(TcpBackend("0.0.0.0", "127.0.0.1", identity=member())):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_is_loopback_however_it_is_spelled(host: str) -> None:
    assert fleet.loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "::ffff:10.0.0.1", "no.invalid"])
def test_what_is_not_is_not(host: str) -> None:
    assert not fleet.loopback(host)


def test_a_listener_says_that_it_is_for_loopback_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(TcpBackend()):
        assert "loopback only: there is no KV secret" in caplog.text


def test_a_fleet_changes_its_secret_without_a_moment_in_which_nobody_gets_in(
    tmp_path: Path,
) -> None:
    """First all take the new one too, then all use it, then the old one goes."""
    files = [tmp_path / "p", tmp_path / "d"]
    old, new = secrets.token_hex(32), secrets.token_hex(32)

    def write(file: Path, *lines: str) -> None:
        beside = file.with_suffix(".new")
        beside.write_text("# the fleet's\n" + "\n".join(lines) + "\n")
        os.replace(beside, file)

    for file in files:
        write(file, old)
    p, d = (Identity(Keyring(path=str(file)), secrets.token_bytes(16)) for file in files)
    with closing(TcpBackend(identity=p)) as owner:
        region = owner.allocate(16)
        address = region.descriptor.address
        steps = [(files[0], old, new), (files[1], old, new), (files[0], new, old)]
        steps += [(files[1], new, old), (files[0], new), (files[1], new)]  # type: ignore[list-item]
        for file, *lines in steps:
            write(file, *lines)
            dial((address["host"], address["port"]), d, TCP, SECONDS).close()
        late = Identity(Keyring((old,)), secrets.token_bytes(16))
        with pytest.raises(Unproven):
            dial((address["host"], address["port"]), late, TCP, SECONDS)


@pytest.mark.parametrize(
    "lines", ["", "# nothing\n", "short\n", "with a space in all of its length ..\n"]
)
def test_a_file_that_holds_no_secret_ends_the_start(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "secret"
    file.write_text(lines)

    with pytest.raises(ValueError, match=r"holds no secret|at least 32"):
        Keyring(path=str(file))


def test_a_secret_comes_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    assert fleet.configured().is_open
    assert fleet.configured(str(file)).keyring.texts() == [SECRET]
    monkeypatch.setenv("PDGATE_KV_SECRET", f"{SECRET}\n{'b' * 32}")
    assert fleet.configured().keyring.texts() == [SECRET, "b" * 32]
    monkeypatch.setenv("PDGATE_KV_SECRET_FILE", str(file))
    assert fleet.configured().keyring.texts() == [SECRET]
    monkeypatch.setenv("PDGATE_KV_SECRET_FILE", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="cannot read"):
        fleet.configured()
