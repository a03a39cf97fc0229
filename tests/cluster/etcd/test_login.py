"""An etcd that asks who one is: a real one, with a user that may use one folder only."""

import asyncio
import logging
from pathlib import Path

import pytest

from pdgate.cluster.directory import Joined, Listed, Lost, Resumed
from pdgate.cluster.etcd import login, wire
from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.etcd.login import Login
from pdgate.cluster.member import FOLDER
from tests.cluster.watching import D, P, following
from tests.support.etcd import EtcdServer

PASSWORD = "not-for-everybody"
KNOWN = Login("pdgate", PASSWORD)


@pytest.fixture
def etcd(own_etcd: EtcdServer) -> EtcdServer:
    """Everybody is asked."""
    for user, role in (("root", "root"), (KNOWN.name, "fleet")):
        own_etcd.ask("/v3/auth/user/add", {"name": user, "password": PASSWORD})
        own_etcd.ask("/v3/auth/role/add", {"name": role})
        own_etcd.ask("/v3/auth/user/grant", {"user": user, "role": role})
    permission = {**wire.folder(FOLDER), "permType": "READWRITE"}
    own_etcd.ask("/v3/auth/role/grant", {"name": "fleet", "perm": permission})
    own_etcd.ask("/v3/auth/enable", {})
    return own_etcd


def directory(etcd: EtcdServer, login: Login | None = KNOWN) -> Etcd:
    return Etcd(etcd.endpoints, lease_seconds=2, beat_seconds=0.3, login=login)


async def test_who_is_known_announces_and_follows(etcd: EtcdServer) -> None:
    async with following(directory(etcd)) as told:
        assert await told.next() == Listed({})
        async with directory(etcd).announce(P):
            assert await told.next() == Joined(P.key, P)


async def test_an_etcd_that_has_forgotten_its_tokens_is_told_again(etcd: EtcdServer) -> None:
    """They live in its memory, and for minutes only."""
    async with directory(etcd).announce(P), following(directory(etcd)) as told:
        # Also if it is there before the other has looked.
        await told.first(Listed)
        await asyncio.to_thread(etcd.stop)
        await told.first(Lost)
        await asyncio.to_thread(etcd.start)

        await told.first(Resumed)
        async with directory(etcd).announce(D):
            await told.until(Joined(D.key, D))


@pytest.mark.parametrize("login", [None, Login("pdgate", "wrong-password")], ids=["none", "wrong"])
async def test_who_is_not_known_is_told_why_and_no_secret_is_logged(
    etcd: EtcdServer, login: Login | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with following(directory(etcd, login)) as told:
        lost = await told.first(Lost)

    assert "invalid user ID or password" in lost.why if login else "user name is empty" in lost.why
    assert "wrong-password" not in caplog.text + lost.why + repr(login)


def test_a_file_says_who_we_are(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("pdgate:pass:word\n")

    assert login.read(str(tmp_path / "user")) == Login("pdgate", "pass:word")
    assert login.read("") is None


@pytest.mark.parametrize("content", ["secret", ":secret", "secret:"])
def test_half_a_login_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "user").write_text(content)

    with pytest.raises(ValueError, match="must hold name:password") as refused:
        login.read(str(tmp_path / "user"))
    assert "secret" not in str(refused.value)
