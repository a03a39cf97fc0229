"""Every kind of directory, for the tests that hold for all of them.

A kind says what can be done to its store from outside, and each claim of test_conformance.py
runs against the kinds that can do what it needs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pdgate.cluster.directory import Directory
from pdgate.cluster.dns import Dns
from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.file import File
from pdgate.cluster.kubernetes.directory import Kubernetes
from pdgate.cluster.member import Member
from pdgate.cluster.memory import MemoryDirectory
from pdgate.cluster.redis_store.directory import RedisDirectory
from pdgate.protocols.instance import Role
from tests.cluster.in_redis import InRedis
from tests.cluster.kubernetes import services
from tests.cluster.watching import D, P
from tests.support.kubernetes import api_server

LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Store:
    """A directory, and the way of somebody else to write into its store.

    Attributes:
        p: A prefill engine as this store can describe it, and d a decode engine.
        add: Lists a member.
        remove: The member of this key is gone.
        write: Any entry, sense or nonsense.
    """

    directory: Directory
    add: Callable[[Member], None]
    remove: Callable[[str], None]
    write: Callable[[str, bytes], None] | None = None
    p: Member = P
    d: Member = D


Make = Callable[[pytest.FixtureRequest], AbstractContextManager[Store]]


@dataclass(frozen=True, slots=True)
class Kind:
    """
    Attributes:
        takes_anything: Its entries are keys and values, which anybody may write.
        announces: Engines can list themselves.
    """

    make: Make
    takes_anything: bool = False
    announces: bool = False


def of_values(
    directory: Directory, put: Callable[[str, bytes], None], remove: Callable[[str], None]
) -> Store:
    return Store(directory, lambda member: put(member.key, member.value()), remove, put)


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[Store]:
    made = MemoryDirectory()
    yield of_values(made, made.put, made.delete)


@contextmanager
def etcd(request: pytest.FixtureRequest) -> Iterator[Store]:
    server = request.getfixturevalue("etcd")
    yield of_values(Etcd(server.endpoints), server.put, server.delete)


@contextmanager
def redis(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = InRedis(request.getfixturevalue("redis"))
    yield of_values(RedisDirectory(url=store.url), store.put, store.delete)


@contextmanager
def file(request: pytest.FixtureRequest) -> Iterator[Store]:
    folder: Path = request.getfixturevalue("tmp_path")
    path, entries = folder / "engines.json", dict[str, str]()

    def save() -> None:
        beside = folder / ".engines"
        beside.write_text(
            "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in entries.items()) + "}"
        )
        beside.replace(path)

    def put(key: str, value: bytes) -> None:
        entries.pop(key, None)
        entries[key] = value.decode()
        save()

    def remove(key: str) -> None:
        del entries[key]
        save()

    save()
    yield of_values(File(path=str(path), every_seconds=LOOK_SECONDS), put, remove)


@contextmanager
def kubernetes(_: pytest.FixtureRequest) -> Iterator[Store]:
    with api_server() as server:
        yield Store(
            Kubernetes(services.access(server)),
            lambda member: server.put(services.service(member)),
            lambda key: server.delete(services.slice_name(key)),
        )


@contextmanager
def dns(_: pytest.FixtureRequest) -> Iterator[Store]:
    """Names say less of an engine than other stores can."""
    zone: dict[str, list[str]] = {"prefill.test": [], "decode.test": []}
    p, d = Member(Role.PREFILL, "10.0.0.1", 8100), Member(Role.DECODE, "fd00::2", 8200)

    async def resolve(name: str, port: int) -> list[str]:
        return list(zone[name])

    def add(member: Member) -> None:
        zone[f"{member.role}.test"].append(member.host)

    def remove(key: str) -> None:
        _, _, role, host, _ = key.split("/")
        zone[f"{role}.test"].remove(host)

    made = Dns(
        resolve,
        prefill="prefill.test:8100",
        decode="decode.test:8200",
        every_seconds=LOOK_SECONDS,
    )
    yield Store(made, add, remove, p=p, d=d)


KINDS: Final[Mapping[str, Kind]] = {
    "memory": Kind(memory, takes_anything=True, announces=True),
    "etcd": Kind(etcd, takes_anything=True, announces=True),
    "redis": Kind(redis, takes_anything=True, announces=True),
    "dns": Kind(dns),
    "file": Kind(file, takes_anything=True),
    "kubernetes": Kind(kubernetes),
}
