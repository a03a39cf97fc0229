"""Notifications: prefill engines say here that all KV of a call has been pushed to decode, which is asked only then.

    PULL   msgpack {"type": "ProxyNotif", "req_id": ...}     LMCache's PD backend, from its pd_proxy_host:pd_proxy_port

One socket, so one worker. Addresses are let in by ZeroMQ's own doorkeeper (ZAP, RFC 27), before a message is read; messages
are MOST_BYTES long at most, and MOST_WAITING of a peer wait. With tensor parallelism each rank says so, and the first
counts, as in LMCache's own proxy.

Source: LMCache 0.5, lmcache/v1/storage_backend/pd_backend.py (ProxyNotif, _nixl_worker_loop); examples' disagg_proxy_server.py.
"""

import asyncio
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from pdgate.cluster import doorkeeper
from pdgate.cluster.doorkeeper import Allowed
from pdgate.gateway.callbacks.words import Result, Words

MOST_BYTES: Final = 1 << 10
MOST_WAITING: Final = 1_000


class _Notification(msgspec.Struct, tag="ProxyNotif"):
    req_id: str


_read = msgspec.msgpack.Decoder(_Notification).decode


class Notifications:
    def __init__(self, host: str, port: int, words: Words, allowed: Allowed) -> None:
        """Binds at once. Raises OSError."""
        self._words = words
        self._allowed = allowed
        self._context = zmq.asyncio.Context()
        self._door = self._context.socket(zmq.REP)
        self._door.bind(doorkeeper.AT)
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set(zmq.ZAP_DOMAIN, doorkeeper.DOMAIN)
        self._pull.set(zmq.MAXMSGSIZE, MOST_BYTES)
        self._pull.set(zmq.RCVHWM, MOST_WAITING)
        self._pull.set(zmq.LINGER, 0)
        self._pull.set(zmq.IPV6, ":" in host)
        try:
            self._pull.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, str(error)) from None
        bound = self._pull.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.port = int(bound.rpartition(b":")[2].rstrip(b"\0"))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._let_in())
            both.create_task(self._hear())

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def _let_in(self) -> None:
        while True:
            asked = await self._door.recv_multipart()
            welcome, said = doorkeeper.answer(asked, self._allowed)
            self._words.counts[Result.STRANGER] += not welcome
            await self._door.send_multipart(said)
            await asyncio.sleep(0)

    async def _hear(self) -> None:
        while True:
            message = await self._pull.recv()
            try:
                key = _read(message).req_id
            # A text that is no UTF-8 is a ValueError.
            except (msgspec.DecodeError, ValueError, RecursionError):
                self._words.counts[Result.MALFORMED] += 1
            else:
                self._words.counts[self._words.say(key, {})] += 1
            # What is there is received without a turn of the loop: a flood would stand still all else.
            await asyncio.sleep(0)
