"""What a directory and a queue hold of engines: addresses, and nothing that suffices to read KV."""

import base64
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from pdgate.cluster.queue.contract import Item
from pdgate.cluster.redis_store import scripts
from pdgate.transfer.runtime.fleet import key_id
from tests.end_to_end.reference.fleet import Engine, Fleet
from tests.support.etcd import etcd_server
from tests.support.kv_exploit import Memory, TurnedAway, asked, prefill
from tests.support.redis import redis_server

EPOCH_BYTES: Final = 16
KNOWN: Final = {
    *("protocol", "generation", "scheme", "model", "kv", "epoch", "tp", "dp_size", "block_tokens"),
    *("host", "rack", "zone", "state", "pair"),
}

Dump = Callable[[], dict[str, str]]


@contextmanager
def in_redis(folder: Path) -> Iterator[tuple[list[str], Dump]]:
    with redis_server(folder) as server:

        def dump() -> dict[str, str]:
            with server.client() as client:
                found = client.hgetall(scripts.VALUES)
                assert isinstance(found, dict)
                return found

        yield ["--directory", "redis", "--directory-option", f"url={server.url}"], dump


@contextmanager
def in_etcd(folder: Path) -> Iterator[tuple[list[str], Dump]]:
    with etcd_server(folder) as server:

        def dump() -> dict[str, str]:
            everything = {"key": "AA==", "range_end": "AA=="}
            answer = httpx2.post(f"{server.endpoints[0]}/v3/kv/range", json=everything).json()
            return {
                base64.b64decode(one["key"]).decode(): base64.b64decode(one["value"]).decode()
                for one in answer.get("kvs", [])
            }

        yield ["--etcd", server.endpoints[0]], dump


@pytest.mark.parametrize("directory", [in_redis, in_etcd])
def test_what_a_directory_says_opens_no_kv(
    directory: Callable[[Path], AbstractContextManager[tuple[list[str], Dump]]], tmp_path: Path
) -> None:
    secret = secrets.token_hex(32)
    file = tmp_path / "kv-secret"
    file.write_text(secret)
    with directory(tmp_path) as (flags, dump), ExitStack() as running:
        engine = Fleet(running, sys.executable).engine(
            "prefill", "vllm-kvt", "tcp", "--kv-secret-file", str(file), *flags
        )
        entries = listed(engine, dump)
        (said,) = (json.loads(value) for value in entries.values())

        assert set(said) <= KNOWN
        everything = json.dumps(entries)
        assert secret not in everything
        assert key_id(secret.encode()).hex() not in everything
        assert said["kv"] == engine.kv
        host, _, port = engine.kv.rpartition(":")
        for found in re.findall(r"[0-9a-f]{16,}", everything):
            # Whatever looks as if it opened something, at the one address that is said.
            epoch = bytes.fromhex(found[: len(found) // 2 * 2]).ljust(EPOCH_BYTES, b"\0")
            with pytest.raises(TurnedAway):
                Memory((host, int(port)), epoch[:EPOCH_BYTES], 1).read()
            with pytest.raises(TurnedAway):
                prefill((host, int(port)), found, [1, 2, 3])
            with pytest.raises(TurnedAway), asked((host, int(port)), found, {}):
                pass


def listed(engine: Engine, dump: Dump) -> dict[str, str]:
    return engine.process.wait_until(dump, "an entry in the directory")


def test_what_a_queue_holds_is_an_address_and_lengths() -> None:
    """A prompt's tokens and pages are asked of the decode engine, by who proves itself."""
    assert Item.__struct_fields__ == ("id", "host", "port", "tokens", "deadline")
