"""An engine's role changes in the directory and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Listing
from pdgate.cluster.member import Member
from pdgate.cluster.memory import MemoryDirectory
from pdgate.engine import roles as module
from pdgate.engine.roles import EngineRoles, RoleFixed, RoleNotAnnounced, may_change, why_fixed
from pdgate.engine.settings import EngineSettings
from pdgate.protocols.instance import Role
from tests.cluster.watching import P, following


@asynccontextmanager
async def listed(directory: MemoryDirectory, roles: EngineRoles) -> AsyncIterator[None]:
    async with directory.announce(P) as listing:
        roles.announced(listing, P)
        yield


async def test_a_change_is_in_the_directory_when_it_is_answered() -> None:
    directory, roles = MemoryDirectory(), EngineRoles(Role.PREFILL)
    async with listed(directory, roles), following(directory) as told:
        await told.first(Listed)

        assert await roles.change(Role.BOTH)

        joined = await told.first(Joined)
        assert (joined.member.role, joined.member.epoch, roles.role) == (Role.BOTH, P.epoch, "both")
        assert await told.next() == Left(P.key)


@pytest.mark.parametrize("protocol", ["neuron", "sglang", "plain"])
async def test_what_a_protocol_cannot_do_is_said_and_nothing_changes(protocol: str) -> None:
    directory, roles = MemoryDirectory(), EngineRoles(Role.PREFILL, why_fixed(protocol))
    async with listed(directory, roles):
        with pytest.raises(RoleFixed):
            await roles.change(Role.DECODE)

        assert roles.role is Role.PREFILL
        assert await roles.change(Role.PREFILL)


async def test_an_engine_that_nobody_lists_cannot_tell_of_a_change() -> None:
    with pytest.raises(RoleNotAnnounced):
        await EngineRoles(Role.PREFILL).change(Role.DECODE)


async def test_a_directory_that_is_away_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Listing):
        said: Member | None = None

        async def change(self, member: Member) -> None:
            self.said = member
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "TOLD_SECONDS", 0.01)
    away, roles = Away(), EngineRoles(Role.PREFILL)
    roles.announced(away, P)

    assert not await roles.change(Role.DECODE)
    assert away.said is not None
    assert (away.said.role, roles.role) == (Role.DECODE, Role.DECODE)


@pytest.mark.parametrize(
    ("protocol", "etcd", "token", "may"),
    [
        ("vllm-nixl", "http://e:2379", "file", True),
        ("vllm-nixl", "http://e:2379", "", False),
        ("vllm-nixl", "", "file", False),
        ("neuron", "http://e:2379", "file", False),
    ],
)
def test_an_engine_is_built_for_both_roles_only_where_it_may_change(
    protocol: str, etcd: str, token: str, may: bool
) -> None:
    """Where it may not, calls of the other role are refused, as they show a mistake."""
    settings = EngineSettings(role="prefill", protocol=protocol, etcd=etcd, admin_token_file=token)

    assert may_change(settings) is may
