"""SRV records: hosts and ports by name, of a server that is asked for real."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.abc import MetaPathFinder
from typing import Any

import pytest
from dns import flags, message, rcode, rrset
from dns.asyncresolver import Resolver

from pdgate.cluster import srv
from pdgate.cluster.directory import Listed
from pdgate.cluster.dns import Dns
from pdgate.cluster.member import Member
from pdgate.cluster.opening import CannotOpen, opened
from pdgate.cluster.polled import Unseen
from pdgate.cluster.srv import servers
from pdgate.protocols.instance import Role
from tests.cluster.watching import following

NAME = "_api._tcp.prefill.test."


class Server(asyncio.DatagramProtocol):
    """Has these SRV records, or answers with a code; None does not answer at all."""

    def __init__(self, records: Sequence[str], code: rcode.Rcode | None) -> None:
        self._records, self._code = records, code
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._code is None or self._transport is None:
            return
        answer = message.make_response(message.from_wire(data))
        answer.flags |= flags.RA
        answer.set_rcode(self._code)
        if self._records:
            answer.answer.append(rrset.from_text_list(NAME, 5, "IN", "SRV", self._records))
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def resolver(
    *records: str, code: rcode.Rcode | None = rcode.NOERROR
) -> AsyncIterator[Resolver]:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Server(records, code), local_addr=("127.0.0.1", 0)
    )
    found = Resolver(configure=False)
    found.nameservers = ["127.0.0.1"]
    found.port = transport.get_extra_info("sockname")[1]
    try:
        yield found
    finally:
        transport.close()


async def test_a_service_has_the_hosts_and_ports_of_its_records() -> None:
    async with resolver("0 5 8101 b.test.", "0 9 8100 A.test.") as asked:
        assert await servers(NAME, asked) == [("a.test", 8100), ("b.test", 8101)]


async def test_only_the_best_priority_counts() -> None:
    async with resolver("10 0 80 spare.test.", "1 0 80 a.test.") as asked:
        assert await servers(NAME, asked) == [("a.test", 80)]


@pytest.mark.parametrize(
    ("records", "code"),
    [((), rcode.NXDOMAIN), ((), rcode.NOERROR), (("0 0 0 .",), rcode.NOERROR)],
    ids=["no name", "no records", "not here"],
)
async def test_a_service_that_is_not_there_has_nobody(
    records: tuple[str, ...], code: rcode.Rcode
) -> None:
    async with resolver(*records, code=code) as asked:
        assert await servers(NAME, asked) == []


@pytest.mark.parametrize("code", [rcode.SERVFAIL, None], ids=["failed", "silent"])
async def test_a_server_that_cannot_say_is_an_outage(
    code: rcode.Rcode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(srv, "ANSWER_SECONDS", 0.2)
    async with resolver(code=code) as asked:
        with pytest.raises(Unseen, match="prefill"):
            await servers(NAME, asked)


@pytest.mark.parametrize("record", ["0 0 0 a.test.", r"0 0 80 a\000b.test."], ids=["port", "host"])
async def test_a_record_that_cannot_be_dialled_is_refused_and_others_count(record: str) -> None:
    async def resolve(name: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    async with resolver(record, "0 0 8100 b.test.") as asked:
        dns = Dns(resolve, lambda name: servers(name, asked), prefill=NAME)
        async with following(dns) as told:
            listed = await told.next()

    assert isinstance(listed, Listed)
    assert [member.port for member in listed.members.values()] == [8100]
    assert len(listed.refused) == 1


async def test_the_directory_has_an_engine_for_each_address_of_each_server() -> None:
    async def resolve(name: str, port: int) -> list[str]:
        return {"a.test": ["10.0.0.1", "10.0.0.2"], "b.test": ["10.0.0.3"]}[name]

    async with resolver("0 0 8100 a.test.") as asked:
        dns = Dns(
            resolve, lambda name: servers(name, asked), prefill=f"{NAME}, b.test:80", model="m"
        )
        async with following(dns) as told:
            listed = await told.next()

    members = [
        Member(Role.PREFILL, host, port, model="m")
        for host, port in (("10.0.0.1", 8100), ("10.0.0.2", 8100), ("10.0.0.3", 80))
    ]
    assert listed == Listed({member.key: member for member in members})


class Absent(MetaPathFinder):
    """As if dnspython were not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "dns":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pdgate.cluster.srv", "dns.asyncresolver", "dns"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])

    with pytest.raises(CannotOpen, match=r"pip install '\.\[dns\]'"):
        opened("dns", [f"prefill={NAME}"])
    assert isinstance(opened("dns", ["prefill=a.test:80"]), Dns)
